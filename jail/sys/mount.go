package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Filesystem makes a new instance of a file system and returns a detached
// mount of it. options alternates keys and values; an empty value is a flag.
func Filesystem(kind string, attr int, options ...string) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", kind, err)
	}
	defer unix.Close(fs)
	for i := 0; i+1 < len(options); i += 2 {
		key, value := options[i], options[i+1]
		if value == "" {
			err = unix.FsconfigSetFlag(fs, key)
		} else {
			err = unix.FsconfigSetString(fs, key, value)
		}
		if err != nil {
			return -1, fmt.Errorf("%s option %s: %w%s", kind, key, err, fsLog(fs))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make %s: %w%s", kind, err, fsLog(fs))
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return mnt, nil
}

// Reconfigure changes options of the file system that the mount fd is of.
func Reconfigure(fd int, options ...string) error {
	fs, err := unix.Fspick(fd, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fspick: %w", err)
	}
	defer unix.Close(fs)
	for i := 0; i+1 < len(options); i += 2 {
		if err := unix.FsconfigSetString(fs, options[i], options[i+1]); err != nil {
			return fmt.Errorf("option %s: %w%s", options[i], err, fsLog(fs))
		}
	}
	if err := unix.FsconfigReconfigure(fs); err != nil {
		return fmt.Errorf("reconfigure: %w%s", err, fsLog(fs))
	}
	return nil
}

// fsLog returns what the kernel says about the last failure.
func fsLog(fs int) string {
	buf := make([]byte, 512)
	n, err := unix.Read(fs, buf)
	if err != nil || n <= 0 {
		return ""
	}
	return " (" + string(buf[:n]) + ")"
}

// Tree returns a detached copy of the mount tree at path (relative to dir),
// with attr set on all of it.
func Tree(dir int, path string, recursive bool, attr uint64) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW)
	setattr := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
		setattr |= unix.AT_RECURSIVE
	}
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dir, path, flags)
	if err != nil {
		return -1, fmt.Errorf("open_tree %q: %w", path, err)
	}
	if attr != 0 {
		if err := unix.MountSetattr(fd, "", setattr, &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE}); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("mount_setattr %q: %w", path, err)
		}
	}
	return fd, nil
}

// MappedTree returns a detached copy of the mount that the folder dir is in, at
// dir, with attr set, on which ids are those of the user namespace userns: what
// belongs to 0 belongs to its 0.
func MappedTree(dir int, attr uint64, userns int) (int, error) {
	fd, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: attr | unix.MOUNT_ATTR_IDMAP, Propagation: unix.MS_PRIVATE, Userns_fd: uint64(userns),
	})
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("idmapped mount: %w", err)
	}
	return fd, nil
}

// Attach mounts the detached tree on the existing file or folder at path
// beneath root. No symlink is followed: the target is what the caller made.
func Attach(tree, root int, path string) error {
	target, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return fmt.Errorf("mount target %q: %w", path, err)
	}
	defer unix.Close(target)
	if err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount %q: %w", path, err)
	}
	return nil
}

// EnterRoot makes the mounted folder root the root of this process's mount
// namespace and drops what was there before.
func EnterRoot(root int) error {
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("chdir: %w", err)
	}
	return nil
}
