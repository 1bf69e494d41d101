package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

type fileID struct{ dev, ino uint64 }

// treeWriter packs a folder as a tar.
type treeWriter struct {
	ctx   context.Context
	w     *tar.Writer
	dev   uint64
	links map[fileID]string
}

// WriteTree packs a folder that other people may change meanwhile as a tar, by
// descriptors and following nothing. What is mounted in it stays out, and
// sockets; the same folder makes the same bytes.
func WriteTree(ctx context.Context, dir *os.File, w io.Writer) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	t := &treeWriter{ctx: ctx, w: tar.NewWriter(w), dev: st.Dev, links: map[fileID]string{}}
	if err := t.header(&st, &tar.Header{Typeflag: tar.TypeDir, Name: "./"}); err != nil {
		return err
	}
	if err := t.folder(int(dir.Fd()), "", 0); err != nil {
		return err
	}
	return t.w.Close()
}

func (t *treeWriter) header(st *unix.Stat_t, h *tar.Header) error {
	h.Mode, h.Uid, h.Gid = int64(st.Mode&0o7777), int(st.Uid), int(st.Gid)
	h.ModTime = time.Unix(st.Mtim.Sec, 0)
	// PAX takes any name.
	h.Format = tar.FormatPAX
	if err := t.w.WriteHeader(h); err != nil {
		return fmt.Errorf("rootfs: pack %q: %w", h.Name, err)
	}
	return nil
}

func (t *treeWriter) folder(fd int, prefix string, depth int) error {
	if depth > maxDepth {
		return badEntry(prefix, "it is over %d folders deep", maxDepth)
	}
	list, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("rootfs: pack %q: %w", prefix, err)
	}
	f := os.NewFile(uintptr(list), prefix)
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return fmt.Errorf("rootfs: pack %q: %w", prefix, err)
	}
	slices.Sort(names)
	for _, name := range names {
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		if err := t.entry(fd, name, prefix+name, depth); err != nil {
			return err
		}
	}
	return nil
}

func (t *treeWriter) entry(dir int, name, full string, depth int) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("rootfs: pack %q: %w", full, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("rootfs: pack %q: %w", full, err)
	}
	kind := st.Mode & unix.S_IFMT
	id := fileID{st.Dev, st.Ino}
	if first := t.links[id]; first != "" && kind != unix.S_IFDIR {
		return t.header(&st, &tar.Header{Typeflag: tar.TypeLink, Name: full, Linkname: first})
	}
	if st.Nlink > 1 && (kind == unix.S_IFREG || kind == unix.S_IFLNK) {
		t.links[id] = full
	}
	switch kind {
	case unix.S_IFDIR:
		if err := t.header(&st, &tar.Header{Typeflag: tar.TypeDir, Name: full + "/"}); err != nil || st.Dev != t.dev {
			return err
		}
		return t.folder(fd, full+"/", depth+1)
	case unix.S_IFLNK:
		buf := make([]byte, maxName)
		n, err := unix.Readlinkat(fd, "", buf)
		if err != nil {
			return fmt.Errorf("rootfs: pack %q: %w", full, err)
		}
		return t.header(&st, &tar.Header{Typeflag: tar.TypeSymlink, Name: full, Linkname: string(buf[:n])})
	case unix.S_IFREG:
		return t.file(fd, full, &st)
	case unix.S_IFCHR, unix.S_IFBLK:
		return t.header(&st, &tar.Header{Typeflag: tar.TypeChar, Name: full})
	case unix.S_IFIFO:
		return t.header(&st, &tar.Header{Typeflag: tar.TypeFifo, Name: full})
	}
	return nil
}

func (t *treeWriter) file(fd int, full string, st *unix.Stat_t) error {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("rootfs: pack %q: %w", full, err)
	}
	defer f.Close()
	if err := t.header(st, &tar.Header{Typeflag: tar.TypeReg, Name: full, Size: st.Size}); err != nil {
		return err
	}
	_, err = io.CopyN(t.w, &contextReader{t.ctx, f}, st.Size)
	if errors.Is(err, io.EOF) {
		return badEntry(full, "was cut while it was read")
	}
	if err != nil {
		return fmt.Errorf("rootfs: pack %q: %w", full, err)
	}
	return nil
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *contextReader) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(b)
}

// openHostPath opens a regular file or a folder of the host: nothing that would
// wait or act when it is opened.
func openHostPath(name string) (f *os.File, folder bool, err error) {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name {
		return nil, false, badImport("path %q is not absolute and clean", name)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, false, badImport("path %q cannot be opened: %v", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, false, fmt.Errorf("rootfs: %w", err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil, false, badImport("path %q is neither a file nor a folder", name)
	}
	f, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, false, badImport("path %q cannot be opened: %v", name, err)
	}
	return f, kind == unix.S_IFDIR, nil
}
