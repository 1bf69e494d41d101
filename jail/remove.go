package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// emptyTree removes the folder name in parent with all that is in it.
//
// The top folder is read again and again: files in it are unlinked, empty
// folders removed, and the entries of other folders moved into the top one
// under new names. So there are never more than two folders open, whatever the
// depth of the tree, and no path is ever resolved beyond one name.
//
// It ends early with ctx: a tenant may fill the tree as fast as it is emptied.
func emptyTree(ctx context.Context, parent int, name string) error {
	top, err := openFolder(parent, name)
	if err != nil {
		return err
	}
	defer top.Close()
	moved := uint64(0)
	for {
		// A fresh description each time: an offset into a folder that changes
		// means nothing.
		empty, err := emptyOnce(ctx, top, &moved)
		if err != nil {
			return err
		}
		if empty {
			break
		}
	}
	return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
}

func openFolder(parent int, name string) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// emptyOnce reads top once and reports whether there was nothing in it.
func emptyOnce(ctx context.Context, top *os.File, moved *uint64) (bool, error) {
	fd := int(top.Fd())
	list, err := openFolder(fd, ".")
	if err != nil {
		return false, err
	}
	defer list.Close()
	empty := true
	for {
		names, err := list.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return empty, nil
		}
		if err != nil {
			return false, err
		}
		empty = false
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			if err := removeEntry(fd, name, moved); err != nil {
				return false, err
			}
		}
	}
}

// removeEntry removes one entry of top; a folder that is not empty is emptied
// into top first.
func removeEntry(top int, name string, moved *uint64) error {
	err := unix.Unlinkat(top, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	// EISDIR on Linux, EPERM by POSIX.
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	err = unix.Unlinkat(top, name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return flatten(top, name, moved)
}

// flatten unlinks the files of top/name and moves its folders to top.
func flatten(top int, name string, moved *uint64) error {
	dir, err := openFolder(top, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	fd := int(dir.Fd())
	for {
		names, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for _, entry := range names {
			if err := unix.Unlinkat(fd, entry, 0); err == nil || errors.Is(err, unix.ENOENT) {
				continue
			}
			if err := unix.Unlinkat(fd, entry, unix.AT_REMOVEDIR); err == nil || errors.Is(err, unix.ENOENT) {
				continue
			}
			if err := moveUp(fd, entry, top, moved); err != nil {
				return err
			}
		}
	}
	// If something was missed the next pass over top comes back to it.
	err = unix.Unlinkat(top, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func moveUp(dir int, entry string, top int, moved *uint64) error {
	for {
		*moved++
		err := unix.Renameat2(dir, entry, top, fmt.Sprintf(".removed-%d", *moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}
