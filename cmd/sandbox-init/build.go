package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/jail/sys"
	"sandboxd/jail/wire"
)

// What Config brings: detached mounts, in this order.
const (
	treeLayer = iota
	treeFiles
	treeCount
)

// treeNames are the template's folders that they are mounted on.
var treeNames = [treeCount]string{treeLayer: "layer", treeFiles: "files"}

const (
	plain  = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	noexec = plain | unix.MOUNT_ATTR_NOEXEC
)

// The mount namespace that this process is born in is a copy of the daemon's
// template, not of the host's: a read-only tmpfs with usr, opt, dev, base (the
// overlay's lower layer), mask and maskdir (empty), proc, and the empty folders
// layer, files and mem to mount on. Nothing of it but what is cloned here survives
// EnterRoot.

// build makes the jail's root, enters it and returns it.
func build(cfg *wire.Config, trees []*os.File) (*os.File, error) {
	if err := unix.Sethostname([]byte(cfg.Hostname)); err != nil {
		return nil, at("hostname", err)
	}
	old, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, at("old root", err)
	}
	defer unix.Close(old)
	// Here first: a tree can only be copied, and be an overlay's layer, where it is
	// part of this namespace.
	for i, name := range treeNames {
		if err := sys.Attach(int(trees[i].Fd()), old, name); err != nil {
			return nil, at(name, err)
		}
	}
	root, err := overlay(old)
	if err != nil {
		return nil, at("overlay", err)
	}
	file := os.NewFile(uintptr(root), "root")
	steps := []struct {
		name string
		do   func(cfg *wire.Config, old, root int) error
	}{
		{"system folders", mountSystem},
		{"dev", mountDev},
		{"memory file systems", mountMemory},
		{"workspace", mountOwn},
		// Last: after it no tree can be cloned any more.
		{"proc", mountProc},
	}
	for _, s := range steps {
		if err := s.do(cfg, old, root); err != nil {
			file.Close()
			return nil, at(s.name, err)
		}
	}
	if err := sys.EnterRoot(root); err != nil {
		file.Close()
		return nil, at("pivot_root", err)
	}
	for _, t := range trees {
		t.Close()
	}
	return file, nil
}

// overlay mounts the root over the old one, where EnterRoot will find it.
func overlay(old int) (int, error) {
	root, err := sys.Filesystem("overlay", plain,
		"lowerdir", "/base", "upperdir", "/layer/upper", "workdir", "/layer/work", "userxattr", "")
	if err != nil {
		return -1, err
	}
	err = unix.MoveMount(root, "", old, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		unix.Close(root)
		return -1, fmt.Errorf("move_mount: %w", err)
	}
	return root, nil
}

// clone copies a tree of the template to the same or another path of the root.
// The copy keeps the template's flags, which are read-only and locked.
func clone(old int, from string, root int, to string) error {
	tree, err := sys.Tree(old, from, true, 0)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return sys.Attach(tree, root, to)
}

// attachNew mounts a new instance of a file system.
func attachNew(root int, to, kind string, attr int, options ...string) error {
	tree, err := sys.Filesystem(kind, attr, options...)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return sys.Attach(tree, root, to)
}

func mountSystem(cfg *wire.Config, old, root int) error {
	if err := clone(old, "usr", root, "usr"); err != nil {
		return err
	}
	if !cfg.Opt {
		return nil
	}
	return clone(old, "opt", root, "opt")
}

// mountProc mounts procfs, covers what tells too much, and writes the limits
// that allow no further namespaces (a detached tree counts as one).
func mountProc(cfg *wire.Config, old, root int) error {
	if err := attachNew(root, "proc", "proc", noexec, "hidepid", "invisible"); err != nil {
		return err
	}
	proc, err := unix.Openat(root, "proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	// The first victim of a host that runs out of memory shall be a jail.
	if err := writeFile(proc, "self/oom_score_adj", "500"); err != nil {
		return err
	}
	// By this the limits can still be written when sys is covered.
	limits, err := unix.Openat(proc, "sys/user", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(limits)
	for _, name := range cfg.ReadOnly {
		tree, err := sys.Tree(proc, name, true, noexec|unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return err
		}
		err = sys.Attach(tree, proc, name)
		unix.Close(tree)
		if err != nil {
			return err
		}
	}
	for _, name := range cfg.MaskFiles {
		if err := clone(old, "mask", proc, name); err != nil {
			return err
		}
	}
	for _, name := range cfg.MaskDirs {
		if err := clone(old, "maskdir", proc, name); err != nil {
			return err
		}
	}
	return noNamespaces(limits)
}

// noNamespaces sets this user namespace's limits to none.
func noNamespaces(limits int) error {
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"} {
		err := writeFile(limits, "max_"+kind+"_namespaces", "0")
		if err == unix.ENOENT && kind != "user" {
			continue // a kind that this kernel does not have
		}
		if err != nil {
			return fmt.Errorf("max_%s_namespaces: %w", kind, err)
		}
	}
	return nil
}

func writeFile(dir int, path, value string) error {
	fd, err := unix.Openat(dir, path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value))
	return err
}

func mountDev(_ *wire.Config, old, root int) error {
	if err := clone(old, "dev", root, "dev"); err != nil {
		return err
	}
	return attachNew(root, "dev/pts", "devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		"mode", "0620", "gid", "5", "ptmxmode", "0666", "max", "64")
}

// mountMemory makes one tmpfs and shows three folders of it, so that one limit
// bounds them together. The tmpfs itself stays behind in the old root.
func mountMemory(cfg *wire.Config, old, root int) error {
	err := attachNew(old, "mem", "tmpfs", plain, "mode", "0755",
		"size", fmt.Sprint(cfg.TmpBytes), "nr_inodes", fmt.Sprint(cfg.TmpInodes))
	if err != nil {
		return err
	}
	for name, target := range map[string]string{"tmp": "tmp", "shm": "dev/shm", "vartmp": "var/tmp"} {
		path := "mem/" + name
		if err := unix.Mkdirat(old, path, 0o777); err != nil {
			return err
		}
		// Not by mkdir: the umask applies there.
		if err := unix.Fchmodat(old, path, 0o1777, 0); err != nil {
			return err
		}
		if err := clone(old, path, root, target); err != nil {
			return err
		}
	}
	return nil
}

func mountOwn(_ *wire.Config, old, root int) error {
	if err := clone(old, "files/workspace", root, "workspace"); err != nil {
		return err
	}
	return clone(old, "files/home", root, "home/user")
}
