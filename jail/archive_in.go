package jail

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An ArchiveError names the entry of an uploaded archive that is refused. What
// came before it is in place. Entry is hostile text.
type ArchiveError struct {
	Entry  string // "" if the archive itself cannot be read
	Reason string
}

func (e *ArchiveError) Error() string {
	if e.Entry == "" {
		return "jail: archive: " + e.Reason
	}
	return fmt.Sprintf("jail: archive: entry %q: %s", e.Entry, e.Reason)
}

// ReadArchive unpacks a tar into the folder at name, which it makes if there is
// none, as the tenant: at most limit bytes of files. The rules:
//   - names are relative, without ".."; no entry goes through a link that is in
//     the folder or came with the archive;
//   - files, folders, links and hard links to files of the folder come in; devices,
//     FIFOs and anything else is refused;
//   - owners are the tenant, set-id bits are dropped, times are kept;
//   - an entry replaces a file or link that has its name, also an earlier entry's;
//     it never replaces a folder, and never writes into what was there;
//   - at the first entry that is refused, unpacking ends with an *ArchiveError.
func (j *Jail) ReadArchive(ctx context.Context, name string, r io.Reader, limit int64) (ArchiveStats, error) {
	p, err := cleanPath(name)
	if err != nil {
		return ArchiveStats{}, err
	}
	ctx, cancel := j.untilEnd(ctx)
	defer cancel()
	u := &unpacker{j: j, ctx: ctx, limit: limit}
	err = j.changing(func(root int) error {
		if p != "." {
			if err := makeFolders(root, p); err != nil {
				return err
			}
		}
		fd, err := lookup(root, p)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		u.top, _, err = reopen(fd, unix.S_IFDIR, unix.O_RDONLY|unix.O_DIRECTORY)
		return err
	})
	if err != nil {
		return u.stats, err
	}
	defer u.close()
	return u.stats, u.unpack(tar.NewReader(r))
}

// unpacker unpacks one archive beneath top.
type unpacker struct {
	j     *Jail
	ctx   context.Context
	limit int64
	stats ArchiveStats
	top   *os.File
	// parent is the folder of the last entry, since the next is often in it too.
	parent     int
	parentPath string
	hasParent  bool
	// late are folders that do not let their owner in, set when all is there.
	late []lateMode
}

type lateMode struct {
	path string
	mode uint32
}

// maxLate bounds what must be remembered until the end.
const maxLate = 10_000

func (u *unpacker) close() {
	u.top.Close()
	if u.hasParent {
		unix.Close(u.parent)
	}
}

func (u *unpacker) unpack(r *tar.Reader) error {
	for {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
			return &ArchiveError{Reason: "is no tar, or breaks off (it must not be compressed)"}
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if u.stats.Entries++; u.stats.Entries > maxArchiveEntries {
			return fmt.Errorf("%w: over %d entries", ErrTooLarge, maxArchiveEntries)
		}
		if err := u.entry(h, r); err != nil {
			return u.explain(h, err)
		}
	}
}

// explain names the entry in errors that come of what it is.
func (u *unpacker) explain(h *tar.Header, err error) error {
	reason := ""
	switch {
	case errors.Is(err, ErrOutside):
		reason = "its folder is reached through a link, or is in another file system"
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EISDIR):
		reason = "a folder is where it belongs, or a file where its folder belongs"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		reason = "the tenant may not write there"
	case errors.Is(err, unix.ENAMETOOLONG):
		reason = "its name is too long"
	default:
		return err
	}
	return &ArchiveError{Entry: h.Name, Reason: reason}
}

// entryPath checks a name of an archive.
func entryPath(name string) (string, string) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", "its name is absolute"
	case len(name) > maxPath:
		return "", "its name is too long"
	case strings.ContainsRune(name, 0):
		return "", "its name has a NUL"
	case strings.Count(name, "/") > maxArchiveDepth:
		return "", fmt.Sprintf("it is over %d folders deep", maxArchiveDepth)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", `its name has ".."`
		}
		if len(part) > 255 {
			return "", "a part of its name is over 255 bytes"
		}
	}
	return path.Clean(name), ""
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name, reason := entryPath(h.Name)
	if reason != "" {
		return &ArchiveError{Entry: h.Name, Reason: reason}
	}
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			return nil // the folder itself stays as it is
		}
		return &ArchiveError{Entry: h.Name, Reason: "has no name"}
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(name, h, r)
	case tar.TypeDir:
		return u.do(name, func(dir int, base string) error { return u.folder(dir, base, name, uint32(h.Mode)&permBits) })
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxPath || strings.ContainsRune(h.Linkname, 0) {
			return &ArchiveError{Entry: h.Name, Reason: "what it points to is no path"}
		}
		return u.do(name, func(dir int, base string) error {
			return replacing(dir, base, func() error { return unix.Symlinkat(h.Linkname, dir, base) })
		})
	case tar.TypeLink:
		return u.hardLink(name, h)
	}
	return &ArchiveError{Entry: h.Name, Reason: "is neither file, folder nor link"}
}

// do runs f as the tenant with the folder that name is in.
func (u *unpacker) do(name string, f func(dir int, base string) error) error {
	return u.j.changing(func(int) error {
		dir, base := path.Split(name)
		fd, err := u.openParent(strings.TrimSuffix(dir, "/"))
		if err != nil {
			return err
		}
		return f(fd, base)
	})
}

// openParent opens a folder beneath top, making what is missing, and keeps it
// for the next entry. No part of the way may be a link.
func (u *unpacker) openParent(dir string) (int, error) {
	if u.hasParent && u.parentPath == dir {
		return u.parent, nil
	}
	fd, err := u.beneath(dir)
	if errors.Is(err, unix.ENOENT) {
		for i := 0; i <= len(dir); i++ {
			if i < len(dir) && dir[i] != '/' {
				continue
			}
			if err := u.makeBeneath(dir[:i]); err != nil {
				return -1, err
			}
		}
		fd, err = u.beneath(dir)
	}
	if err != nil {
		return -1, err
	}
	if u.hasParent {
		unix.Close(u.parent)
	}
	u.parent, u.parentPath, u.hasParent = fd, dir, true
	return fd, nil
}

func (u *unpacker) makeBeneath(dir string) error {
	up, base := path.Split(dir)
	fd, err := u.beneath(strings.TrimSuffix(up, "/"))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Mkdirat(fd, base, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

const resolveBeneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

func (u *unpacker) beneath(dir string) (int, error) {
	if dir == "" {
		dir = "."
	}
	fd, err := unix.Openat2(int(u.top.Fd()), dir, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolveBeneath,
	})
	return fd, err
}

// replacing makes something new under a name, in place of a file or link that
// has it.
func replacing(dir int, base string, create func() error) error {
	for range 8 {
		err := create()
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := unix.Unlinkat(dir, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return unix.EAGAIN // somebody in the jail makes it again and again
}

func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	if h.Size > u.limit-u.stats.Bytes {
		return fmt.Errorf("%w: the files are over %d bytes", ErrTooLarge, u.limit)
	}
	var f *os.File
	err := u.do(name, func(dir int, base string) error {
		return replacing(dir, base, func() error {
			fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
			if err == nil {
				f = os.NewFile(uintptr(fd), "jail file")
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := u.j.pour(u.ctx, f, r, h.Size)
	u.stats.Bytes += n
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &ArchiveError{Entry: h.Name, Reason: "breaks off"}
	}
	if err != nil {
		return err
	}
	return u.j.changing(func(int) error {
		fd := int(f.Fd())
		if err := unix.Fchmod(fd, uint32(h.Mode)&permBits); err != nil {
			return err
		}
		return setTime(fd, h.ModTime)
	})
}

// setTime sets the time of change; one that the file system cannot hold is left.
func setTime(fd int, t time.Time) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: t.Unix(), Nsec: int64(t.Nanosecond())}}
	err := unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), times, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// folder makes a folder; one that is there keeps its permissions.
func (u *unpacker) folder(dir int, base, full string, mode uint32) error {
	err := unix.Mkdirat(dir, base, 0o700)
	made := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !made {
		return nil
	}
	if mode&0o700 != 0o700 {
		if len(u.late) >= maxLate {
			return fmt.Errorf("%w: over %d folders that shut their owner out", ErrTooLarge, maxLate)
		}
		u.late = append(u.late, lateMode{full, mode})
		return nil
	}
	return chmodFD(fd, mode)
}

func (u *unpacker) hardLink(name string, h *tar.Header) error {
	target, reason := entryPath(h.Linkname)
	if reason != "" || target == "." {
		return &ArchiveError{Entry: h.Name, Reason: "the file that it is another name of is not in the archive's folder"}
	}
	return u.do(name, func(dir int, base string) error {
		fd, err := unix.Openat2(int(u.top.Fd()), target, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolveBeneath,
		})
		if err != nil {
			return &ArchiveError{Entry: h.Name, Reason: "the file that it is another name of is not there"}
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return &ArchiveError{Entry: h.Name, Reason: "it is another name of something that is no file"}
		}
		if target == name {
			return nil
		}
		return replacing(dir, base, func() error {
			return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), dir, base, unix.AT_SYMLINK_FOLLOW)
		})
	})
}

// finish sets the permissions that would have been in the way, deepest first.
func (u *unpacker) finish() error {
	return u.j.changing(func(int) error {
		for i := len(u.late) - 1; i >= 0; i-- {
			fd, err := u.beneath(u.late[i].path)
			if err != nil {
				continue // changed meanwhile
			}
			err = chmodFD(fd, u.late[i].mode)
			unix.Close(fd)
			if err != nil {
				return err
			}
		}
		return nil
	})
}
