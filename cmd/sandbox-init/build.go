package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp/bpf"
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
// layer, files, layers/N, mem and stage to mount on. Nothing of it but what is cloned here
// survives EnterRoot.

// staged is what prepare has made.
type staged struct {
	opt                    bool
	old                    int // the template's root
	dev                    int // a detached tree
	proc                   int // what is mounted on stage: procfs, as the jail will see it
	limits                 int // its sys/user, before it was covered
	initFilter, execFilter []unix.SockFilter
}

// prepare does what does not depend on whose jail it will be. Nothing of it
// needs the user namespace's ids, which are not mapped yet.
func prepare(cfg *wire.Prepare) (*staged, error) {
	s := &staged{opt: cfg.Opt}
	var err error
	s.initFilter, err = bpf.Unmarshal(cfg.InitFilter)
	if err = at("filters", err); err != nil {
		return nil, err
	}
	s.execFilter, err = bpf.Unmarshal(cfg.ExecFilter)
	if err = at("filters", err); err != nil {
		return nil, err
	}
	s.old, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err = at("old root", err); err != nil {
		return nil, err
	}
	if err := at("proc", s.stageProc(cfg)); err != nil {
		return nil, err
	}
	s.dev, err = sys.Tree(s.old, "dev", true, 0)
	if err = at("dev", err); err != nil {
		return nil, err
	}
	return s, nil
}

// build makes the jail's root, enters it and returns it.
func build(cfg *wire.Config, st *staged, trees, layers []*os.File) (*os.File, error) {
	if err := at("hostname", unix.Sethostname([]byte(cfg.Hostname))); err != nil {
		return nil, err
	}
	// Here first: a tree can only be copied, and be an overlay's layer, where it is
	// part of this namespace.
	for i, name := range treeNames {
		if err := at(name, sys.Attach(int(trees[i].Fd()), st.old, name)); err != nil {
			return nil, err
		}
	}
	for i, layer := range layers {
		if err := at("layers", sys.Attach(int(layer.Fd()), st.old, fmt.Sprintf("layers/%d", i))); err != nil {
			return nil, err
		}
	}
	root, err := overlay(cfg, st.old)
	if err = at("overlay", err); err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(root), "root")
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"system folders", func() error { return mountSystem(cfg, st, root) }},
		{"dev", func() error { return mountDev(st, root) }},
		{"memory file systems", func() error { return mountMemory(cfg, st.old, root) }},
		{"workspace", func() error { return mountOwn(st.old, root) }},
		// After it no tree can be cloned any more.
		{"limits", func() error { return noNamespaces(st.limits) }},
		{"proc", func() error { return sys.Attach(st.proc, root, "proc") }},
	} {
		if err := at(s.name, s.do()); err != nil {
			file.Close()
			return nil, err
		}
	}
	if err := at("pivot_root", sys.EnterRoot(root)); err != nil {
		file.Close()
		return nil, err
	}
	for _, t := range append(trees, layers...) {
		t.Close()
	}
	for _, fd := range []int{st.old, st.dev, st.proc, st.limits} {
		unix.Close(fd)
	}
	return file, nil
}

// overlay mounts the root over the old one, where EnterRoot will find it.
func overlay(cfg *wire.Config, old int) (int, error) {
	attr, options := plain, []string{"userxattr", ""}
	switch {
	case cfg.Layers == 0:
		options = append(options, "lowerdir", "/base", "upperdir", "/layer/upper", "workdir", "/layer/work")
	case cfg.WritableRoot:
		options = append(options, "upperdir", "/files/root/upper", "workdir", "/files/root/work")
	default:
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	if cfg.Layers > 0 {
		// What the daemon wrote for this jail lies over the template.
		options = append(options, "lowerdir+", "/layer/upper")
	}
	for i := range cfg.Layers {
		options = append(options, "lowerdir+", fmt.Sprintf("/layers/%d", i))
	}
	root, err := sys.Filesystem("overlay", attr, options...)
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

func mountSystem(cfg *wire.Config, st *staged, root int) error {
	if cfg.Layers > 0 {
		return nil // the template's own
	}
	if err := clone(st.old, "usr", root, "usr"); err != nil {
		return err
	}
	if !st.opt {
		return nil
	}
	return clone(st.old, "opt", root, "opt")
}

// stageProc mounts procfs and covers what tells too much.
func (s *staged) stageProc(cfg *wire.Prepare) error {
	if err := attachNew(s.old, "stage", "proc", noexec, "hidepid", "invisible"); err != nil {
		return err
	}
	// Of the procfs now, not of the folder below it.
	proc, err := unix.Openat(s.old, "stage", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.proc = proc
	// By this the limits can still be written when sys is covered.
	if s.limits, err = unix.Openat(proc, "sys/user", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
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
		if err := clone(s.old, "mask", proc, name); err != nil {
			return err
		}
	}
	for _, name := range cfg.MaskDirs {
		if err := clone(s.old, "maskdir", proc, name); err != nil {
			return err
		}
	}
	return nil
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

func mountDev(st *staged, root int) error {
	if err := sys.Attach(st.dev, root, "dev"); err != nil {
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

func mountOwn(old, root int) error {
	if err := clone(old, "files/workspace", root, "workspace"); err != nil {
		return err
	}
	return clone(old, "files/home", root, "home/user")
}
