package rootfs

import (
	"archive/tar"
	"bytes"
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

const (
	maxName  = 4096
	maxDepth = 128 // folders above an entry

	// What stays of an entry's mode. Set-id bits do nothing in a jail, where
	// no_new_privs and nosuid hold; on the host's disk, in files of root, they
	// would wait for somebody who finds a way to them.
	fileBits   = 0o777
	folderBits = 0o1777

	// tenantID is the tenant's user and group in a jail.
	tenantID = 1000

	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
	opaqueXattr    = "user.overlay.opaque"
)

// budget is what an import may still take, all its layers together.
type budget struct {
	bytes, entries int64
	limits         Limits
	report         func(entries, bytes int64)
}

func (b *budget) entry() error {
	if b.entries++; b.entries > b.limits.Entries {
		return tooLarge("over %d entries", b.limits.Entries)
	}
	b.report(b.entries, b.bytes)
	return nil
}

func (b *budget) take(n int64) error {
	if n > b.limits.Bytes-b.bytes {
		return tooLarge("the files are over %d bytes", b.limits.Bytes)
	}
	b.bytes += n
	b.report(b.entries, b.bytes)
	return nil
}

// unpacker writes one layer beneath top. The rules:
//   - an entry's name has no ".."; what leads to it are folders, never links;
//   - files, folders, symbolic links (wherever they point: a jail resolves them
//     in its own root) and hard links to what the layer has come in; devices,
//     pipes and sockets are left out, anything else is refused;
//   - owners become the jail's root, but the tenant's (1000) stays: the jail's
//     root has no capability and could not use what others own;
//   - modes lose the set-id bits, extended attributes stay out;
//   - of two entries with one name the later counts, but none takes a folder's
//     place;
//   - with whiteouts, names that begin with .wh. hide what lower layers have.
type unpacker struct {
	ctx       context.Context
	top       int
	whiteouts bool
	budget    *budget
	info      layerInfo
	buf       []byte
	// parent is the folder of the last entry, since the next is often in it too.
	parent     int
	parentPath string
	hasParent  bool
}

// unpack reads a tar into the empty folder top, to the archive's end mark.
func unpack(ctx context.Context, top *os.File, r io.Reader, whiteouts bool, b *budget) (layerInfo, error) {
	u := &unpacker{ctx: ctx, top: int(top.Fd()), whiteouts: whiteouts, budget: b, buf: make([]byte, 256<<10)}
	defer func() {
		if u.hasParent {
			unix.Close(u.parent)
		}
	}()
	for archive := tar.NewReader(r); ; {
		if ctx.Err() != nil {
			return u.info, context.Cause(ctx)
		}
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return u.info, nil
		}
		if err != nil {
			return u.info, brokenTar(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		u.info.Entries++
		if err := b.entry(); err != nil {
			return u.info, err
		}
		if err := u.entry(h, archive); err != nil {
			return u.info, explain(h, err)
		}
	}
}

// brokenTar names what a tar reader finds wrong with its input; other errors are
// the reader's below.
func brokenTar(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return badImport("is no tar, or breaks off")
	}
	return err
}

// explain names the entry in errors that come of what it is.
func explain(h *tar.Header, err error) error {
	reason := ""
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		reason = "a link is where its folder belongs"
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY):
		reason = "a folder is where it belongs, or a file where its folder belongs"
	case errors.Is(err, unix.ENAMETOOLONG):
		reason = "its name is too long"
	default:
		return err
	}
	return badEntry(h.Name, "%s", reason)
}

// entryPath makes an entry's name one beneath the root.
func entryPath(name string) (string, error) {
	switch {
	case len(name) > maxName:
		return "", badEntry(name[:64], "its name is too long")
	case strings.ContainsRune(name, 0):
		return "", badEntry(name, "its name has a NUL")
	case strings.Count(name, "/") > maxDepth:
		return "", badEntry(name, "it is over %d folders deep", maxDepth)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", badEntry(name, `its name has ".."`)
		}
		if len(part) > 255 {
			return "", badEntry(name, "a part of its name is over 255 bytes")
		}
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name, err := entryPath(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag == tar.TypeDir {
			return u.attributes(u.top, h, folderBits)
		}
		return badEntry(h.Name, "has no name")
	}
	dir, base := path.Split(name)
	if u.whiteouts && strings.HasPrefix(base, whiteoutPrefix) {
		return u.whiteout(h, strings.TrimSuffix(dir, "/"), base)
	}
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		u.info.LeftOut++
		return nil
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	default:
		return badEntry(h.Name, "is neither file, folder nor link")
	}
	parent, err := u.openParent(strings.TrimSuffix(dir, "/"))
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.folder(parent, base, h)
	case tar.TypeSymlink:
		return u.symlink(parent, base, h)
	case tar.TypeLink:
		return u.hardLink(parent, base, name, h)
	}
	return u.file(parent, base, h, r)
}

// openParent opens a folder beneath top, making what is missing, and keeps it
// for the next entry. No part of the way may be a link.
func (u *unpacker) openParent(dir string) (int, error) {
	if u.hasParent && u.parentPath == dir {
		return u.parent, nil
	}
	fd, err := u.beneath(dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		for i := 1; i <= len(dir); i++ {
			if i < len(dir) && dir[i] != '/' {
				continue
			}
			if err := u.implied(dir[:i]); err != nil {
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

// implied makes a folder that the archive names only as part of a path.
func (u *unpacker) implied(dir string) error {
	up, base := path.Split(dir)
	fd, err := u.beneath(strings.TrimSuffix(up, "/"))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	made, err := u.makeFolder(fd, base)
	if err != nil || !made {
		return err
	}
	if err := u.budget.entry(); err != nil {
		return err
	}
	return unix.Fchmodat(fd, base, 0o755, 0)
}

const resolveBeneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

func openBeneath(top int, dir string, flags uint64) (int, error) {
	if dir == "" {
		dir = "."
	}
	return unix.Openat2(top, dir, &unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolveBeneath})
}

func (u *unpacker) beneath(dir string) (int, error) {
	return openBeneath(u.top, dir, unix.O_PATH|unix.O_DIRECTORY)
}

// makeFolder makes a folder and says whether there was none. One in place of a
// whiteout hides what lower layers have there.
func (u *unpacker) makeFolder(parent int, base string) (made bool, err error) {
	err = unix.Mkdirat(parent, base, 0o755)
	if err == nil || !errors.Is(err, unix.EEXIST) {
		return err == nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false, nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR: // a whiteout
	case unix.S_IFLNK:
		return false, unix.ELOOP
	default:
		return false, unix.EEXIST
	}
	if err := unix.Unlinkat(parent, base, 0); err != nil {
		return false, err
	}
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return false, err
	}
	return true, makeOpaque(parent, base)
}

// makeOpaque hides what lower layers have in a folder.
func makeOpaque(parent int, base string) error {
	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fsetxattr(fd, opaqueXattr, []byte("y"), 0); err != nil {
		return fmt.Errorf("mark a folder: %w", err)
	}
	return nil
}

// whiteout hides what lower layers have under a name, or all of a folder.
func (u *unpacker) whiteout(h *tar.Header, dir, base string) error {
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	switch {
	case base == whiteoutOpaque && dir == "":
		return badEntry(h.Name, "hides the whole root: leave the lower layers out instead")
	case base == whiteoutOpaque:
		fd, err := u.openParent(dir)
		if err != nil {
			return err
		}
		return makeOpaque(fd, ".")
	case strings.HasPrefix(base, whiteoutMeta):
		return nil // other notes of the file system that the layer was made on
	case hidden == "" || hidden == "." || hidden == "..":
		return badEntry(h.Name, "hides nothing that has a name")
	}
	parent, err := u.openParent(dir)
	if err != nil {
		return err
	}
	// Char device 0:0 is the overlay's sign. It is no device.
	err = unix.Mknodat(parent, hidden, unix.S_IFCHR, 0)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	// The layer has the name itself: it hides only what is below.
	var st unix.Stat_t
	if err := unix.Fstatat(parent, hidden, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return makeOpaque(parent, hidden)
	}
	return nil
}

// replacing makes something new under a name, in place of what is no folder.
func replacing(dir int, base string, create func() error) error {
	err := create()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := unix.Unlinkat(dir, base, 0); err != nil {
		return err
	}
	return create()
}

func owner(id int) int {
	if id == tenantID {
		return id
	}
	return 0
}

// attributes sets owner, mode and time of a file or folder.
func (u *unpacker) attributes(fd int, h *tar.Header, bits uint32) error {
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := unix.Fchownat(unix.AT_FDCWD, path, owner(h.Uid), owner(h.Gid), 0); err != nil {
		return err
	}
	if err := unix.Fchmodat(unix.AT_FDCWD, path, uint32(h.Mode)&bits, 0); err != nil {
		return err
	}
	return setTime(unix.AT_FDCWD, path, h.ModTime, 0)
}

// setTime sets the time of change; one that the file system cannot hold is left.
func setTime(dir int, path string, t time.Time, flags int) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: t.Unix(), Nsec: int64(t.Nanosecond())}}
	if err := unix.UtimesNanoAt(dir, path, times, flags); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

func (u *unpacker) folder(parent int, base string, h *tar.Header) error {
	if _, err := u.makeFolder(parent, base); err != nil {
		return err
	}
	fd, err := unix.Openat(parent, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return u.attributes(fd, h, folderBits)
}

func (u *unpacker) symlink(parent int, base string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) >= maxName || strings.ContainsRune(h.Linkname, 0) {
		return badEntry(h.Name, "what it points to is no path")
	}
	err := replacing(parent, base, func() error { return unix.Symlinkat(h.Linkname, parent, base) })
	if err != nil {
		return err
	}
	if err := unix.Fchownat(parent, base, owner(h.Uid), owner(h.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return setTime(parent, base, h.ModTime, unix.AT_SYMLINK_NOFOLLOW)
}

func (u *unpacker) hardLink(parent int, base, name string, h *tar.Header) error {
	target, err := entryPath(h.Linkname)
	if err != nil || target == "" {
		return badEntry(h.Name, "the file that it is another name of is not in the archive")
	}
	if target == name {
		return nil
	}
	dir, other := path.Split(target)
	fd, err := u.beneath(strings.TrimSuffix(dir, "/"))
	if err != nil {
		return badEntry(h.Name, "the file that it is another name of is not there")
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstatat(fd, other, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return badEntry(h.Name, "the file that it is another name of is not there")
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return badEntry(h.Name, "it is another name of something that is no file")
	}
	return replacing(parent, base, func() error { return unix.Linkat(fd, other, parent, base, 0) })
}

func (u *unpacker) file(parent int, base string, h *tar.Header, r io.Reader) error {
	var f *os.File
	err := replacing(parent, base, func() error {
		fd, err := unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == nil {
			f = os.NewFile(uintptr(fd), "file of a layer")
		}
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	if err := u.pour(f, r); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return badEntry(h.Name, "breaks off")
		}
		return err
	}
	return u.attributes(int(f.Fd()), h, fileBits)
}

// pour copies a file's content; where it is zero the file gets a hole.
func (u *unpacker) pour(f *os.File, r io.Reader) error {
	size, hole := int64(0), false
	for {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		n, err := io.ReadFull(r, u.buf)
		if n > 0 {
			if err := u.budget.take(int64(n)); err != nil {
				return err
			}
			u.info.Bytes += int64(n)
			size += int64(n)
			if hole = isZero(u.buf[:n]); hole {
				_, err := f.Seek(int64(n), io.SeekCurrent)
				if err != nil {
					return err
				}
			} else if _, err := f.Write(u.buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
			// A short last piece; of an archive that breaks off, the next Next tells.
			if hole {
				return f.Truncate(size)
			}
			return nil
		default:
			return err
		}
	}
}

var zeros [256 << 10]byte

func isZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }
