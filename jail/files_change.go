package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// AppendFile adds what r gives, at most limit bytes, to the end of a regular
// file, which it makes if there is none. If it fails midway, what was written
// until then stays: the returned size says how much there is.
func (j *Jail) AppendFile(ctx context.Context, name string, r io.Reader, mode uint32, limit int64) (info FileInfo, err error) {
	p, err := cleanPath(name)
	if err != nil {
		return info, err
	}
	if mode &= permBits; mode == 0 {
		mode = 0o644
	}
	var f *os.File
	if err = j.changing(func(root int) (err error) {
		f, err = openAppend(root, p, mode)
		return err
	}); err != nil {
		return info, err
	}
	defer f.Close()
	_, err = j.pour(ctx, f, r, limit)
	var st unix.Stat_t
	if serr := unix.Fstat(int(f.Fd()), &st); serr != nil {
		return info, errors.Join(err, serr)
	}
	return fileInfo(path.Base(p), &st, ""), err
}

// openAppend opens the file at p, or makes it. Somebody in the jail may make and
// remove it at the same time; after some tries that is their problem.
func openAppend(root int, p string, mode uint32) (*os.File, error) {
	dir, _ := path.Split(p)
	if err := makeFolders(root, strings.Trim(dir, "/")); err != nil {
		return nil, err
	}
	for range 8 {
		fd, err := lookup(root, p)
		if err == nil {
			f, _, err := reopen(fd, unix.S_IFREG, unix.O_WRONLY|unix.O_APPEND)
			unix.Close(fd)
			return f, err
		}
		if !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		parent, base, err := folder(root, p)
		if err != nil {
			return nil, err
		}
		fd, err = unix.Openat(parent, base, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		unix.Close(parent)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), "jail file"), unix.Fchmod(fd, mode)
	}
	return nil, unix.EAGAIN
}

// Rename moves what is at from to to, in one step; missing folders above to are
// made. What is at to is only replaced with overwrite. Links are moved, not
// followed. It does not copy: both must be in one file system of the jail.
func (j *Jail) Rename(ctx context.Context, from, to string, overwrite bool) error {
	src, err := cleanPath(from)
	if err != nil {
		return err
	}
	dst, err := cleanPath(to)
	var field *SpecError
	if errors.As(err, &field) {
		return &SpecError{Field: "to", Message: field.Message}
	}
	if err != nil {
		return err
	}
	err = j.changing(func(root int) error { return rename(root, src, dst, overwrite) })
	if errors.Is(err, errOtherFS) {
		return &SpecError{Field: "to", Message: "is in another file system of the jail (/workspace, /home/user, /tmp and the root are four): copy it"}
	}
	return err
}

var errOtherFS = errors.New("jail: another file system")

func rename(root int, src, dst string, overwrite bool) error {
	dir, _ := path.Split(dst)
	if err := makeFolders(root, strings.Trim(dir, "/")); err != nil {
		return err
	}
	from, fromName, err := folder(root, src)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, toName, err := folder(root, dst)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	flags := uint(unix.RENAME_NOREPLACE)
	if overwrite {
		flags = 0
	}
	if err := unix.Renameat2(from, fromName, to, toName, flags); errors.Is(err, unix.EXDEV) {
		return errOtherFS
	} else if err != nil {
		return err
	}
	return nil
}

// Chmod sets the permission bits of a file or folder, never set-id bits. A link
// is ErrNotRegular: links have no permissions, and none is followed.
func (j *Jail) Chmod(ctx context.Context, name string, mode uint32) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	if mode&^permBits != 0 {
		return &SpecError{Field: "mode", Message: fmt.Sprintf("%04o has more than permission bits", mode)}
	}
	return j.changing(func(root int) error {
		fd, err := lookup(root, p)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return chmodFD(fd, mode)
	})
}

// chmodFD changes what an O_PATH descriptor has found, so that nothing can be
// put in its place meanwhile.
func chmodFD(fd int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return ErrNotRegular
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}
