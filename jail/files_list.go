package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

// List describes the entries of a folder, sorted by path; with a depth over 1
// also those of the folders in it, as "dir/name". Links are never followed, and
// folders that the tenant may not read are listed without their entries.
func (j *Jail) List(ctx context.Context, name string, depth int) ([]FileInfo, error) {
	p, err := cleanPath(name)
	if err != nil {
		return nil, err
	}
	if depth < 1 || depth > maxDepth {
		return nil, &SpecError{Field: "depth", Message: fmt.Sprintf("%d is not between 1 and %d", depth, maxDepth)}
	}
	l := &lister{ctx: ctx}
	err = j.asTenant(func(root int) error {
		fd, err := lookup(root, p)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		dir, _, err := reopen(fd, unix.S_IFDIR, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		return l.walk(dir, "", depth)
	})
	if err != nil {
		return nil, err
	}
	sort.Slice(l.out, func(a, b int) bool { return l.out[a].Name < l.out[b].Name })
	return l.out, nil
}

type lister struct {
	ctx context.Context
	out []FileInfo
}

// walk lists dir, which it closes. Its depth is bounded by maxDepth.
func (l *lister) walk(dir *os.File, prefix string, depth int) error {
	defer dir.Close()
	for {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := l.entry(dir, prefix, name, depth); err != nil {
				return err
			}
		}
	}
}

func (l *lister) entry(dir *os.File, prefix, name string, depth int) error {
	fd := int(dir.Fd())
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // gone meanwhile
	}
	if len(l.out) >= maxListing {
		return fmt.Errorf("%w: over %d entries", ErrTooLarge, maxListing)
	}
	l.out = append(l.out, fileInfo(prefix+name, &st, linkTarget(fd, name, &st)))
	if depth <= 1 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	sub, err := openListed(fd, name)
	if err != nil {
		return nil // not readable, or not a folder any more
	}
	return l.walk(sub, prefix+name+"/", depth-1)
}

// openListed opens a folder in a folder, never crossing into another mount.
func openListed(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
