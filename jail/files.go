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
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The file API works on the jail's own view of its files, from outside, and
// trusts nothing in it:
//   - it acts as the tenant (fsuid 1000 of the jail, no capabilities), so it can
//     do nothing that a command of the tenant could not;
//   - paths are resolved by the kernel beneath the jail's root, without magic
//     links; the last part is never followed;
//   - a file is opened with O_PATH first, looked at, and opened again only if it
//     is a regular one: no FIFO or device is ever waited on;
//   - procfs is not served: it would speak of the daemon.

const (
	resolveJail = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	maxPath     = 4095
	maxParts    = 256
	// maxListing bounds a listing's entries; more is ErrTooLarge.
	maxListing = 100_000
	maxDepth   = 32
	permBits   = 0o777 // never set-id bits
)

// cleanPath checks a path and makes it relative to the root.
func cleanPath(p string) (string, error) {
	if !strings.HasPrefix(p, "/") {
		p = workspacePath + "/" + p
	}
	if len(p) > maxPath || strings.ContainsRune(p, 0) || strings.Count(p, "/") > maxParts {
		return "", &SpecError{Field: "path", Message: "is too long or has a NUL"}
	}
	for _, part := range strings.Split(p, "/") {
		if part == ".." {
			return "", ErrOutside
		}
		if len(part) > 255 {
			return "", &SpecError{Field: "path", Message: "has a name of over 255 bytes"}
		}
	}
	if p = strings.TrimPrefix(path.Clean(p), "/"); p == "" {
		p = "."
	}
	return p, nil
}

// asTenant runs f with the file system rights of the jail's user 1000. The ids
// belong to this thread alone; leaving uid 0 also takes the thread's file
// capabilities, and coming back gives them back.
func (j *Jail) asTenant(f func(root int) error) error {
	j.rootMu.RLock()
	defer j.rootMu.RUnlock()
	if j.rootGone || j.root == nil {
		return ErrGone
	}
	raw, err := j.root.SyscallConn()
	if err != nil {
		return ErrGone
	}
	runtime.LockOSThread()
	// Locked for ever, and so ended with its goroutine, if the ids do not come
	// back; setfsuid does not fail for root, so this is for the unthinkable.
	unix.SetfsgidRetGid(int(j.uid + tenantGID))
	unix.SetfsuidRetUid(int(j.uid + tenantUID))
	ferr := error(nil)
	err = raw.Control(func(fd uintptr) {
		if now, _ := unix.SetfsuidRetUid(-1); now != int(j.uid+tenantUID) {
			ferr = fmt.Errorf("jail: file system uid is %d", now)
			return
		}
		ferr = f(int(fd))
	})
	unix.SetfsuidRetUid(0)
	unix.SetfsgidRetGid(0)
	if now, _ := unix.SetfsuidRetUid(-1); now == 0 {
		runtime.UnlockOSThread()
	}
	if err != nil {
		return ErrGone
	}
	return fileError(ferr)
}

// fileError makes kernel errors the package's own where callers tell them
// apart; the rest (ENOENT, EACCES …) already are fs errors.
func fileError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%w: %w", ErrOutside, err)
	}
	return err
}

// lookup opens what is at path without touching it.
func lookup(root int, p string) (int, error) {
	for try := 0; ; try++ {
		fd, err := unix.Openat2(root, p, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolveJail,
		})
		// A rename elsewhere in the tree raced with "..".
		if errors.Is(err, unix.EAGAIN) && try < 16 {
			continue
		}
		return fd, err
	}
}

// folder opens the folder that path's last part is in.
func folder(root int, p string) (fd int, name string, err error) {
	dir, name := path.Split(p)
	if name == "" || name == "." {
		return -1, "", ErrOutside
	}
	if dir == "" {
		dir = "."
	}
	fd, err = unix.Openat2(root, dir, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolveJail,
	})
	return fd, name, err
}

// reopen opens a looked-up regular file or folder.
func reopen(fd int, kind uint32, flags int) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, st, err
	}
	if st.Mode&unix.S_IFMT != kind || fs.Type == unix.PROC_SUPER_MAGIC {
		return nil, st, ErrNotRegular
	}
	f, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, st, err
	}
	return os.NewFile(uintptr(f), "jail file"), st, nil
}

// OpenFile opens a regular file for reading.
func (j *Jail) OpenFile(ctx context.Context, name string) (f *os.File, info FileInfo, err error) {
	p, err := cleanPath(name)
	if err != nil {
		return nil, info, err
	}
	if err := ctx.Err(); err != nil {
		return nil, info, err
	}
	err = j.asTenant(func(root int) error {
		fd, err := lookup(root, p)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		f, st, err = reopen(fd, unix.S_IFREG, unix.O_RDONLY)
		info = fileInfo(path.Base(p), &st, "")
		return err
	})
	return f, info, err
}

// ReadFile reads a regular file of at most limit bytes.
func (j *Jail) ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	f, info, err := j.OpenFile(ctx, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size > limit {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, info.Size, limit)
	}
	// The file may grow while it is read.
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return b, nil
}

// WriteFile puts a regular file with the content of r, at most limit bytes, in
// place of what was there: it is complete or not there at all, and neither
// follows a link nor writes through a hard link. Missing folders are made. mode
// 0 means 0644, or that of the file before.
func (j *Jail) WriteFile(ctx context.Context, name string, r io.Reader, mode uint32, limit int64) (FileInfo, error) {
	p, err := cleanPath(name)
	if err != nil {
		return FileInfo{}, err
	}
	w := &fileWriter{j: j, path: p, mode: mode & permBits}
	if err := j.asTenant(w.open); err != nil {
		return FileInfo{}, err
	}
	defer w.close()
	n, err := io.Copy(w.file, io.LimitReader(ctxReader{ctx, r}, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	if err != nil {
		j.asTenant(w.abort)
		return FileInfo{}, err
	}
	if err := j.asTenant(w.commit); err != nil {
		j.asTenant(w.abort)
		return FileInfo{}, err
	}
	return w.info, nil
}

// ctxReader stops a copy when the context ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

// fileWriter writes a new file beside the old one.
type fileWriter struct {
	j    *Jail
	path string
	mode uint32
	dir  int
	name string
	tmp  string
	file *os.File
	info FileInfo
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
	if err := w.oldMode(); err != nil {
		unix.Close(w.dir)
		return err
	}
	var b [8]byte
	rand.Read(b[:])
	w.tmp = ".sandboxd-" + hex.EncodeToString(b[:])
	fd, err := unix.Openat(w.dir, w.tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		unix.Close(w.dir)
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
	return unix.Renameat(w.dir, w.tmp, w.dir, w.name)
}

func (w *fileWriter) abort(int) error { return unix.Unlinkat(w.dir, w.tmp, 0) }

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
	return j.asTenant(func(root int) error {
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

// Remove deletes a file, a link or an empty folder; with recursive a folder
// with all that is in it.
func (j *Jail) Remove(ctx context.Context, name string, recursive bool) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	// A jail that ends does not wait for a tree that its tenant has filled.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-j.ending:
			cancel()
		case <-ctx.Done():
		}
	}()
	return j.asTenant(func(root int) error {
		dir, base, err := folder(root, p)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		err = unix.Unlinkat(dir, base, 0)
		if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
			return err
		}
		err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
		if recursive && (errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)) {
			return emptyTree(ctx, dir, base)
		}
		return err
	})
}

// Stat describes what is at path; a link is described itself.
func (j *Jail) Stat(ctx context.Context, name string) (info FileInfo, err error) {
	p, err := cleanPath(name)
	if err != nil {
		return info, err
	}
	err = j.asTenant(func(root int) error {
		fd, err := lookup(root, p)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		info = fileInfo(path.Base(p), &st, linkTarget(fd, "", &st))
		return nil
	})
	return info, err
}

func linkTarget(dir int, name string, st *unix.Stat_t) string {
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return ""
	}
	buf := make([]byte, 4096)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

func fileInfo(name string, st *unix.Stat_t, target string) FileInfo {
	kind := "device"
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		kind = "file"
	case unix.S_IFDIR:
		kind = "dir"
	case unix.S_IFLNK:
		kind = "symlink"
	case unix.S_IFIFO:
		kind = "fifo"
	case unix.S_IFSOCK:
		kind = "socket"
	}
	return FileInfo{
		Name: name, Type: kind, Size: st.Size, Mode: st.Mode & permBits, MTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec),
		Target: target,
	}
}
