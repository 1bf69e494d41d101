package jail

import (
	"context"
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
//   - it acts as the tenant (fsuid 1000 of the jail, no file capabilities, none
//     that quotas make way for), so it can do nothing that a command of the
//     tenant could not;
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

// maxAtFiles is how many file operations of one jail are under way at once;
// each is short, since none waits for the jail.
const maxAtFiles = 8

// asTenant runs f with the file system rights of the jail's user 1000. The ids
// belong to this thread alone; leaving uid 0 also takes the thread's file
// capabilities, and coming back gives them back.
func (j *Jail) asTenant(f func(root int) error) error {
	j.atFiles <- struct{}{}
	defer func() { <-j.atFiles }()
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
	capErr := setQuotaBound(true)
	unix.SetfsgidRetGid(int(j.uid + tenantGID))
	unix.SetfsuidRetUid(int(j.uid + tenantUID))
	ferr := capErr
	err = raw.Control(func(fd uintptr) {
		if now, _ := unix.SetfsuidRetUid(-1); now != int(j.uid+tenantUID) {
			ferr = fmt.Errorf("jail: file system uid is %d", now)
		}
		if ferr == nil {
			ferr = f(int(fd))
		}
	})
	unix.SetfsuidRetUid(0)
	unix.SetfsgidRetGid(0)
	capErr = setQuotaBound(false)
	if now, _ := unix.SetfsuidRetUid(-1); now == 0 && capErr == nil {
		runtime.UnlockOSThread()
	}
	if err != nil {
		return ErrGone
	}
	return fileError(ferr)
}

// changing is asTenant for what changes the tree: it waits while a snapshot is
// taken.
func (j *Jail) changing(f func(root int) error) error {
	j.writeMu.RLock()
	defer j.writeMu.RUnlock()
	return j.asTenant(f)
}

// setQuotaBound takes CAP_SYS_RESOURCE, before which quotas and reserved blocks
// give way, from this thread's effective set, or gives it back.
func setQuotaBound(bound bool) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return fmt.Errorf("jail: capget: %w", err)
	}
	const bit = 1 << unix.CAP_SYS_RESOURCE
	if bound {
		data[0].Effective &^= bit
	} else {
		data[0].Effective |= bit & data[0].Permitted
	}
	if err := unix.Capset(&head, &data[0]); err != nil {
		return fmt.Errorf("jail: capset: %w", err)
	}
	return nil
}

// untilEnd is ctx, ended also when the jail ends: what may take long does not
// hold up its end.
func (j *Jail) untilEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-j.ending:
			cancel(ErrGone)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
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

// Remove deletes a file, a link or an empty folder; with recursive a folder
// with all that is in it.
func (j *Jail) Remove(ctx context.Context, name string, recursive bool) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	// A jail that ends does not wait for a tree that its tenant has filled.
	ctx, cancel := j.untilEnd(ctx)
	defer cancel()
	return j.changing(func(root int) error {
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
