package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxTreeDepth is how deep a tree may be that is copied or compared: each level
// holds two descriptors.
const maxTreeDepth = 512

// treeCopy copies a tenant's tree, with the daemon's own rights, on the host's
// side. It goes by descriptors, follows nothing and opens regular files only.
// Data is shared with the original where the file system can (reflink), else
// copied without the holes. Set-id bits and sockets stay out; owners that are
// not in the tenant's range become the tenant.
type treeCopy struct {
	ctx context.Context
	uid uint32 // first of the tenant's range
	// limit bounds the bytes of files.
	limit int64
	links map[fileID]string // of to, beneath its top
	top   int               // of to

	bytes   atomic.Int64
	entries atomic.Int64
	noClone bool
}

// copyTree copies the content of the folder from into the folder to, which must
// be empty and nobody else's to write.
func (c *treeCopy) copyTree(from, to *os.File) error {
	c.links, c.top = map[fileID]string{}, int(to.Fd())
	type level struct {
		from, to *os.File
		path     string
		names    []string
		st       unix.Stat_t
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return err
	}
	levels := []level{{from: from, to: to, st: st}}
	defer func() {
		for _, l := range levels[1:] {
			l.from.Close()
			l.to.Close()
		}
	}()
	for {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		top := &levels[len(levels)-1]
		if len(top.names) == 0 {
			var err error
			if top.names, err = top.from.Readdirnames(listBatch); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
		}
		if len(top.names) == 0 {
			// Last, when nothing is put into it any more.
			if err := c.attributes(int(top.to.Fd()), &top.st); err != nil {
				return err
			}
			if len(levels) == 1 {
				return nil
			}
			top.from.Close()
			top.to.Close()
			levels = levels[:len(levels)-1]
			continue
		}
		name := top.names[0]
		top.names = top.names[1:]
		subFrom, subTo, subSt, err := c.entry(int(top.from.Fd()), int(top.to.Fd()), name, top.path+name)
		if err != nil {
			return err
		}
		if subFrom == nil {
			continue
		}
		levels = append(levels, level{from: subFrom, to: subTo, path: top.path + name + "/", st: subSt})
		if len(levels) > maxTreeDepth {
			return fmt.Errorf("%w: folders over %d deep", ErrTooLarge, maxTreeDepth)
		}
	}
}

// entry copies one entry; a folder is made and both sides are returned.
func (c *treeCopy) entry(from, to int, name, full string) (subFrom, subTo *os.File, st unix.Stat_t, err error) {
	item, err := openEntry(from, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
		return nil, nil, st, nil
	}
	if err != nil {
		return nil, nil, st, err
	}
	if n := c.entries.Add(1); n > maxArchiveEntries*10 {
		err = fmt.Errorf("%w: over %d entries", ErrTooLarge, maxArchiveEntries*10)
	}
	if err == nil {
		switch item.st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if err = unix.Mkdirat(to, name, 0o700); err != nil {
				break
			}
			if subTo, err = openFolder(to, name); err == nil {
				return item.file, subTo, item.st, nil
			}
		case unix.S_IFREG:
			err = c.file(item, to, name, full)
		case unix.S_IFLNK:
			if err = unix.Symlinkat(item.target, to, name); err == nil {
				uid, gid := c.owner(&item.st)
				err = unix.Fchownat(to, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
			}
			if err == nil {
				err = unix.UtimesNanoAt(to, name, timesOf(&item.st), unix.AT_SYMLINK_NOFOLLOW)
			}
		case unix.S_IFIFO:
			if err = unix.Mknodat(to, name, unix.S_IFIFO|item.st.Mode&permBits, 0); err == nil {
				uid, gid := c.owner(&item.st)
				err = unix.Fchownat(to, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
			}
		}
	}
	if item.file != nil {
		item.file.Close()
	}
	return nil, nil, st, err
}

func (c *treeCopy) file(item packItem, to int, name, full string) error {
	id := fileID{item.st.Dev, item.st.Ino}
	if item.st.Nlink > 1 {
		if first, ok := c.links[id]; ok {
			return unix.Linkat(c.top, first, to, name, 0)
		}
	}
	fd, err := unix.Openat(to, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), name)
	defer out.Close()
	if err := c.data(item.file, out, &item.st); err != nil {
		return err
	}
	if err := c.attributes(fd, &item.st); err != nil {
		return err
	}
	if item.st.Nlink > 1 && len(c.links) < maxHardLinks {
		c.links[id] = full
	}
	return nil
}

// data clones or copies the content.
func (c *treeCopy) data(from, to *os.File, st *unix.Stat_t) error {
	// What it takes on the disk; holes take nothing.
	if n := c.bytes.Add(st.Blocks * 512); n > c.limit {
		return fmt.Errorf("%w: the files are over %d bytes", ErrTooLarge, c.limit)
	}
	if st.Size == 0 {
		return nil
	}
	if !c.noClone {
		err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
		if err == nil {
			return nil
		}
		c.noClone = errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTTY)
	}
	if err := to.Truncate(st.Size); err != nil {
		return err
	}
	piece := pieces.Get().(*[]byte)
	defer pieces.Put(piece)
	for at := int64(0); at < st.Size; {
		start, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if at, err = c.extent(from, to, *piece, start, end); err != nil {
			return err
		}
	}
	return nil
}

// extent copies the bytes from start to end and returns where it came to.
func (c *treeCopy) extent(from, to *os.File, piece []byte, start, end int64) (int64, error) {
	for start < end {
		if c.ctx.Err() != nil {
			return start, context.Cause(c.ctx)
		}
		n, err := from.ReadAt(piece[:min(end-start, int64(len(piece)))], start)
		if n == 0 {
			if errors.Is(err, io.EOF) {
				return end, nil // it was cut meanwhile
			}
			return start, err
		}
		if _, err := to.WriteAt(piece[:n], start); err != nil {
			return start, err
		}
		start += int64(n)
	}
	return end, nil
}

// owner is that of the original, if it is the tenant's to have.
func (c *treeCopy) owner(st *unix.Stat_t) (uid, gid int) {
	own := func(id, fallback uint32) int {
		if id < c.uid || id-c.uid >= uidRange {
			return int(c.uid + fallback)
		}
		return int(id)
	}
	return own(st.Uid, tenantUID), own(st.Gid, tenantGID)
}

func (c *treeCopy) attributes(fd int, st *unix.Stat_t) error {
	uid, gid := c.owner(st)
	if err := unix.Fchown(fd, uid, gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, st.Mode&(permBits|unix.S_ISVTX)); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), timesOf(st), 0)
}

func timesOf(st *unix.Stat_t) []unix.Timespec { return []unix.Timespec{st.Atim, st.Mtim} }
