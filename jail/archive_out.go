package jail

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of an archive, in either direction.
const (
	maxArchiveEntries = 1_000_000
	maxArchiveDepth   = 256
	// maxHardLinks is how many files with several names are remembered; those
	// after them are written once for each name.
	maxHardLinks = 100_000
	// listBatch is how many names of a folder are held at once, for each level.
	listBatch = 128
)

// ArchiveStats says what went into or out of an archive.
type ArchiveStats struct {
	Entries int
	Bytes   int64 // of files
	// Skipped counts what an archive does not carry: sockets, FIFOs, devices,
	// and what the tenant may not read.
	Skipped int
}

// WriteArchive writes what is at name, a file or a folder's content, as a tar to
// w: at most limit bytes of files. Links stay links, set-id bits and other file
// systems' content stay out, sockets, FIFOs, devices and what the tenant may not
// read are skipped. The tree may change while it is read: a file that shrinks is
// padded with zeros, one that grows is cut.
//
// ready is called when the path was found, before the first byte.
func (j *Jail) WriteArchive(ctx context.Context, name string, w io.Writer, limit int64, ready func()) (ArchiveStats, error) {
	p, err := cleanPath(name)
	if err != nil {
		return ArchiveStats{}, err
	}
	ctx, cancel := j.untilEnd(ctx)
	defer cancel()
	a := &packer{ctx: ctx, w: tar.NewWriter(w), limit: limit, shift: j.uid, links: map[fileID]string{},
		do: func(f func() error) error { return j.asTenant(func(int) error { return f() }) }}
	var item packItem
	err = j.asTenant(func(root int) error {
		fd, err := lookup(root, p)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		item, err = openItem(fd, path.Base(p))
		return err
	})
	if err != nil {
		return a.stats, err
	}
	if item.file == nil {
		return a.stats, ErrNotRegular
	}
	ready()
	return a.stats, a.pack(item)
}

// fileID tells hard links.
type fileID struct{ dev, ino uint64 }

// packer writes a tree to a tar. It goes down by descriptors and holds one open
// folder and a few names for each level.
type packer struct {
	ctx   context.Context
	w     *tar.Writer
	do    func(func() error) error // runs what touches the tree
	limit int64
	shift uint32 // subtracted from owners
	links map[fileID]string
	stats ArchiveStats
}

// packItem is what was found under one name; file is open for files and folders.
type packItem struct {
	name   string
	st     unix.Stat_t
	file   *os.File
	target string
}

// openItem looks at an O_PATH descriptor and opens what can be read.
func openItem(fd int, name string) (item packItem, err error) {
	item.name = name
	if err := unix.Fstat(fd, &item.st); err != nil {
		return item, err
	}
	switch kind := item.st.Mode & unix.S_IFMT; kind {
	case unix.S_IFREG, unix.S_IFDIR:
		flags := unix.O_RDONLY
		if kind == unix.S_IFDIR {
			flags |= unix.O_DIRECTORY
		}
		item.file, item.st, err = reopen(fd, kind, flags)
	case unix.S_IFLNK:
		item.target = linkTarget(fd, "", &item.st)
	}
	return item, err
}

// openEntry finds name in dir, in the same file system.
func openEntry(dir int, name string) (packItem, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return packItem{name: name}, err
	}
	defer unix.Close(fd)
	return openItem(fd, name)
}

// packLevel is a folder on the way down.
type packLevel struct {
	dir    *os.File
	prefix string
	names  []string
}

// pack writes item, which it closes: a file under its name, or the content of a
// folder.
func (a *packer) pack(item packItem) error {
	if item.st.Mode&unix.S_IFMT == unix.S_IFREG {
		if err := a.entry(item, item.name); err != nil {
			return err
		}
		return a.w.Close()
	}
	levels := []packLevel{{dir: item.file}}
	defer func() {
		for _, l := range levels {
			l.dir.Close()
		}
	}()
	for len(levels) > 0 {
		if a.ctx.Err() != nil {
			return context.Cause(a.ctx)
		}
		top := &levels[len(levels)-1]
		more, err := a.fill(top)
		if err != nil {
			return err
		}
		if !more {
			top.dir.Close()
			levels = levels[:len(levels)-1]
			continue
		}
		name := top.names[0]
		top.names = top.names[1:]
		sub, err := a.visit(top.dir, name, top.prefix+name)
		if err != nil {
			return err
		}
		if sub == nil {
			continue
		}
		levels = append(levels, packLevel{dir: sub, prefix: top.prefix + name + "/"})
		if len(levels) > maxArchiveDepth {
			return fmt.Errorf("%w: folders over %d deep", ErrTooLarge, maxArchiveDepth)
		}
	}
	return a.w.Close()
}

// fill sees to it that the level has names, if there are more.
func (a *packer) fill(l *packLevel) (more bool, err error) {
	if len(l.names) > 0 {
		return true, nil
	}
	err = a.do(func() (err error) {
		l.names, err = l.dir.Readdirnames(listBatch)
		return err
	})
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	slices.Sort(l.names)
	return len(l.names) > 0, err
}

// visit writes one entry; a folder is returned to be gone into.
func (a *packer) visit(dir *os.File, name, full string) (*os.File, error) {
	var item packItem
	err := a.do(func() (err error) {
		item, err = openEntry(int(dir.Fd()), name)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil // gone meanwhile
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, ErrNotRegular):
		// Changed meanwhile or not the tenant's to read.
		a.stats.Skipped++
		return nil, nil
	case errors.Is(err, unix.EXDEV):
		return nil, nil // what is mounted there is no part of this tree
	case err != nil:
		return nil, err
	}
	if item.file != nil && item.st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := a.header(&item, full+"/", tar.TypeDir, 0); err != nil {
			item.file.Close()
			return nil, err
		}
		return item.file, nil
	}
	return nil, a.entry(item, full)
}

// entry writes what is no folder.
func (a *packer) entry(item packItem, full string) error {
	if item.file != nil {
		defer item.file.Close()
	}
	switch item.st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return a.header(&item, full, tar.TypeSymlink, 0)
	case unix.S_IFREG:
	default:
		a.stats.Skipped++
		return nil
	}
	if item.st.Nlink > 1 {
		id := fileID{item.st.Dev, item.st.Ino}
		if first, ok := a.links[id]; ok {
			item.target = first
			return a.header(&item, full, tar.TypeLink, 0)
		}
		if len(a.links) < maxHardLinks {
			a.links[id] = full
		}
	}
	if item.st.Size > a.limit-a.stats.Bytes {
		return fmt.Errorf("%w: the files are over %d bytes", ErrTooLarge, a.limit)
	}
	if err := a.header(&item, full, tar.TypeReg, item.st.Size); err != nil {
		return err
	}
	return a.content(item.file, item.st.Size)
}

func (a *packer) header(item *packItem, full string, kind byte, size int64) error {
	if a.stats.Entries++; a.stats.Entries > maxArchiveEntries {
		return fmt.Errorf("%w: over %d entries", ErrTooLarge, maxArchiveEntries)
	}
	err := a.w.WriteHeader(&tar.Header{
		Typeflag: kind, Name: full, Linkname: item.target, Size: size, Mode: int64(item.st.Mode & permBits),
		Uid: inside(item.st.Uid, a.shift), Gid: inside(item.st.Gid, a.shift),
		ModTime: time.Unix(item.st.Mtim.Sec, 0), Format: tar.FormatGNU,
	})
	if err != nil {
		return fmt.Errorf("jail: archive: %w", err)
	}
	return nil
}

// inside is the jail's own number of a host id; those that it has none for are
// nobody's.
func inside(id, shift uint32) int {
	if id < shift || id-shift >= uidRange {
		return 65534
	}
	return int(id - shift)
}

// content copies size bytes, whatever becomes of the file.
func (a *packer) content(f *os.File, size int64) error {
	piece := pieces.Get().(*[]byte)
	defer pieces.Put(piece)
	for left := size; left > 0; {
		if a.ctx.Err() != nil {
			return context.Cause(a.ctx)
		}
		b := (*piece)[:min(left, int64(len(*piece)))]
		n, err := f.Read(b)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("jail: archive: %w", err)
		}
		if n == 0 {
			clear(b)
			n = len(b)
		}
		if _, err := a.w.Write(b[:n]); err != nil {
			return err
		}
		left -= int64(n)
		a.stats.Bytes += int64(n)
	}
	return nil
}
