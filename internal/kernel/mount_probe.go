package kernel

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// tryMounting runs as root of a user namespace with a mount namespace of its
// own; what it mounts ends with it.
func tryMounting() trials {
	runtime.LockOSThread() // the file system uid belongs to a thread
	out := trials{"userns": tried(tryIDs())}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		failed := tried(fmt.Errorf("make mounts private: %w", err))
		out["proc"], out["mountapi"], out["overlay"] = failed, failed, failed
		return out
	}
	out["proc"] = tried(tryProc())
	out["mountapi"] = tried(tryMountAPI())
	out["overlay"] = tried(tryOverlay())
	return out
}

// tryIDs uses the second mapped id.
func tryIDs() error {
	if unix.Getuid() != 0 {
		return fmt.Errorf("uid %d in the namespace, want 0", unix.Getuid())
	}
	// The call answers with the previous id, whether it worked or not, so the
	// second one tells about the first.
	if _, err := unix.SetfsuidRetUid(1000); err != nil {
		return fmt.Errorf("become uid 1000: %w", err)
	}
	was, err := unix.SetfsuidRetUid(0)
	if err != nil || was != 1000 {
		return fmt.Errorf("become uid 1000: became %d, %v", was, err)
	}
	return nil
}

// newMount makes a detached mount of a file system with options.
func newMount(fstype string, options map[string]string) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(fs)
	for key, value := range options {
		if value == "" {
			err = unix.FsconfigSetFlag(fs, key)
		} else {
			err = unix.FsconfigSetString(fs, key, value)
		}
		if err != nil {
			return -1, fmt.Errorf("fsconfig %s %s: %w", fstype, key, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create %s: %w", fstype, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", fstype, err)
	}
	return fd, nil
}

// tryProc mounts procfs. It fails if anything is mounted over parts of this
// process's own /proc.
func tryProc() error {
	fd, err := newMount("proc", map[string]string{"hidepid": "invisible"})
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// tryMountAPI clones a mount, makes it read-only, and attaches it.
func tryMountAPI() error {
	tmp, err := newMount("tmpfs", nil)
	if err != nil {
		return err
	}
	defer unix.Close(tmp)
	if err := unix.Mkdirat(tmp, "dir", 0o755); err != nil {
		return fmt.Errorf("mkdir: %w", err)
	}
	// A place for it: no path of the host is used as a target but by
	// descriptor, in this namespace alone.
	if err := unix.MoveMount(tmp, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	tree, err := unix.OpenTree(tmp, "dir", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(tree, "", tmp, "dir", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return expect("writing to a read-only mount", unix.Mkdirat(tree, "x", 0o755), unix.EROFS)
}

// tryOverlay mounts an overlay and copies a file up in it.
func tryOverlay() error {
	tmp, err := newMount("tmpfs", nil)
	if err != nil {
		return err
	}
	defer unix.Close(tmp)
	for _, dir := range []string{"lower", "upper", "work"} {
		if err := unix.Mkdirat(tmp, dir, 0o755); err != nil {
			return fmt.Errorf("mkdir: %w", err)
		}
	}
	file, err := unix.Openat(tmp, "lower/file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("lower file: %w", err)
	}
	unix.Close(file)
	// Overlay wants paths, so the tmpfs needs a place; the working directory
	// then names it whatever is above.
	if err := unix.MoveMount(tmp, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	if err := unix.Fchdir(tmp); err != nil {
		return fmt.Errorf("chdir: %w", err)
	}
	over, err := newMount("overlay", map[string]string{
		"lowerdir": "lower", "upperdir": "upper", "workdir": "work", "userxattr": "",
	})
	if err != nil {
		return err
	}
	defer unix.Close(over)
	up, err := unix.Openat(over, "file", unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("copy up: %w", err)
	}
	unix.Close(up)
	if err := unix.Unlinkat(over, "file", 0); err != nil {
		return fmt.Errorf("whiteout: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(tmp, "lower/file", &st, 0); err != nil {
		return errors.New("deleting in the overlay deleted the lower file")
	}
	return nil
}
