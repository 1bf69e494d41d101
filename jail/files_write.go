package jail

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// WriteFile puts a regular file with the content of r, at most limit bytes, in
// place of what was there: it is complete or not there at all, and neither
// follows a link nor writes through a hard link. Missing folders are made. mode
// 0 means 0644, or that of the file before.
func (j *Jail) WriteFile(ctx context.Context, name string, r io.Reader, mode uint32, limit int64) (FileInfo, error) {
	p, err := cleanPath(name)
	if err != nil {
		return FileInfo{}, err
	}
	w := &fileWriter{path: p, mode: mode & permBits}
	if err := j.changing(w.open); err != nil {
		return FileInfo{}, err
	}
	defer w.close()
	if _, err := j.pour(ctx, w.file, r, limit); err != nil {
		j.changing(w.abort)
		return FileInfo{}, err
	}
	if err := j.changing(w.commit); err != nil {
		j.changing(w.abort)
		return FileInfo{}, err
	}
	return w.info, nil
}

// pieces are what uploads are read into, so that their memory is bounded by
// their number.
var pieces = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// pour writes what r gives, at most limit bytes, piece by piece as the tenant:
// the reader may be slow, and a quota does not give way to the daemon.
func (j *Jail) pour(ctx context.Context, to *os.File, r io.Reader, limit int64) (n int64, err error) {
	piece := pieces.Get().(*[]byte)
	defer pieces.Put(piece)
	for {
		if err := ctx.Err(); err != nil {
			return n, context.Cause(ctx)
		}
		k, rerr := fill(r, *piece)
		if n+int64(k) > limit {
			return n, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
		}
		if k > 0 {
			werr := j.changing(func(int) error {
				w, err := to.Write((*piece)[:k])
				n += int64(w)
				return err
			})
			if werr != nil {
				return n, werr
			}
		}
		if errors.Is(rerr, io.EOF) {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
	}
}

// fill reads until b is full or r ends. Unlike io.ReadFull it leaves r's errors
// as they are: an upload that breaks off is none that ends.
func fill(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = r.Read(b[n:])
		n += k
	}
	return n, err
}

// fileWriter writes a new file that gets its name when it is complete, so that
// whatever ends the daemon meanwhile leaves nothing.
type fileWriter struct {
	path string
	mode uint32
	dir  int
	name string
	tmp  string
	// named says that tmp is there: always, where the file system has no files
	// without a name.
	named bool
	file  *os.File
	info  FileInfo
}

func (w *fileWriter) open(root int) (err error) {
	w.dir = -1
	dir, _ := path.Split(w.path)
	if err := makeFolders(root, strings.Trim(dir, "/")); err != nil {
		return err
	}
	if w.dir, w.name, err = folder(root, w.path); err != nil {
		return err
	}
	if err := w.create(); err != nil {
		unix.Close(w.dir)
		return err
	}
	return nil
}

func (w *fileWriter) create() error {
	if err := w.oldMode(); err != nil {
		return err
	}
	var b [8]byte
	rand.Read(b[:])
	w.tmp = ".sandboxd-" + hex.EncodeToString(b[:])
	fd, err := unix.Openat(w.dir, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		fd, err = unix.Openat(w.dir, w.tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		w.named = err == nil
	}
	if err != nil {
		return err
	}
	w.file = os.NewFile(uintptr(fd), "jail file")
	return nil
}

// oldMode refuses to replace what is not a regular file and takes over its
// permissions.
func (w *fileWriter) oldMode() error {
	var st unix.Stat_t
	err := unix.Fstatat(w.dir, w.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return ErrNotRegular
	case w.mode == 0:
		w.mode = st.Mode & permBits
	}
	if w.mode == 0 {
		w.mode = 0o644
	}
	return nil
}

func (w *fileWriter) commit(int) error {
	var st unix.Stat_t
	fd := int(w.file.Fd())
	if err := unix.Fchmod(fd, w.mode); err != nil {
		return err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	w.info = fileInfo(w.name, &st, "")
	if !w.named {
		// A link never replaces what is there; a rename does, in one step.
		err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), w.dir, w.tmp, unix.AT_SYMLINK_FOLLOW)
		if err != nil {
			return err
		}
		w.named = true
	}
	return unix.Renameat(w.dir, w.tmp, w.dir, w.name)
}

func (w *fileWriter) abort(int) error {
	if !w.named {
		return nil
	}
	return unix.Unlinkat(w.dir, w.tmp, 0)
}

func (w *fileWriter) close() {
	w.file.Close()
	unix.Close(w.dir)
}

// makeFolders makes what is missing of a path, one part after the other.
func makeFolders(root int, dir string) error {
	if dir == "" {
		return nil
	}
	for i := 0; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		if err := makeFolder(root, dir[:i], 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

func makeFolder(root int, p string, mode uint32) error {
	// It may be there where the tenant may not write: that is no error.
	if fd, err := lookup(root, p); err == nil {
		unix.Close(fd)
		return unix.EEXIST
	}
	dir, name, err := folder(root, p)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Mkdirat(dir, name, mode)
}

// Mkdir makes a folder and the missing ones above it. It is no error if it is
// there.
func (j *Jail) Mkdir(ctx context.Context, name string, mode uint32) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	if mode &= permBits; mode == 0 {
		mode = 0o755
	}
	return j.changing(func(root int) error {
		if p == "." {
			return nil
		}
		dir, _ := path.Split(p)
		if err := makeFolders(root, strings.Trim(dir, "/")); err != nil {
			return err
		}
		err := makeFolder(root, p, mode)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		fd, err := lookup(root, p)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return ErrNotRegular
		}
		return nil
	})
}
