package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/jail/rootfs"
	"sandboxd/jail/sys"
)

const (
	attrPlain  = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrNoexec = attrPlain | unix.MOUNT_ATTR_NOEXEC
	attrRO     = attrPlain | unix.MOUNT_ATTR_RDONLY
)

// devices are the nodes of a jail's /dev, with their numbers.
var devices = map[string]uint64{
	"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7),
	"random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9), "tty": unix.Mkdev(5, 0),
}

// spawner owns one thread for the Manager's whole life. All jails are cloned
// from it, for two reasons: the kernel sends a child its parent-death signal
// when the parent's thread ends, not its process; and the thread lives in a
// mount namespace of its own, the template, which holds only what a jail needs:
// so a jail's mount namespace is never a copy of the host's.
type spawner struct {
	jobs chan func()
	done chan struct{}
	// ownCgroupNS is why the thread has no cgroup namespace of its own, nil if
	// it has.
	ownCgroupNS error
}

// enterCgroupNS moves this thread to a new cgroup namespace whose root is top,
// so that /proc/self/cgroup in a jail shows no path of the host. A namespace's
// root is the group of the process that makes it; so a child is cloned into top
// while top may still have processes (it passes no controllers on yet), makes
// the namespace, and this thread joins it.
//
// One for all jails: a root of each jail's own would have to be its group,
// which passes controllers on and so may never have a process.
func enterCgroupNS(top group) error {
	// What a crashed daemon has left there ends now, for the controllers that it
	// passed on can be taken back only then. The folder is locked: it is ours.
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if err := top.child("jails").destroy(ctx); err != nil {
		return err
	}
	if err := top.takeBack(); err != nil {
		return err
	}
	cg, err := unix.Open(string(top), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(cg)
	gate, childGate, err := gatePair()
	if err != nil {
		return err
	}
	defer gate.Close()
	p := &sys.Program{}
	p.Descriptors(int(childGate.Fd()))
	p.Call("cgroup namespace", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	b := p.Bytes(make([]byte, 1))
	p.CallMin("gate", 1, unix.SYS_WRITE, 0, b, 1)
	p.CallMin("gate", 1, unix.SYS_READ, 0, b, 1)
	child, err := p.Start(0, cg)
	childGate.Close()
	if err != nil {
		return err
	}
	defer unix.Close(child.PidFD)
	if err = await(ctx, gate); err == nil {
		err = joinCgroupNS(child.PidFD)
	}
	gate.Close()
	unix.Wait4(child.Pid, nil, unix.WALL, nil)
	if own := child.Finish(); own != nil && !errors.Is(own, unix.EPIPE) {
		return own // what it failed at; that we hang up is its end
	}
	return err
}

// joinCgroupNS moves this thread to the cgroup namespace of a process, and back
// if it could not clone from there: where namespaces are borders of delegation
// (nsdelegate, systemd's default), both the thread's own group and the child's
// must be within. Under the unit they are; a daemon that was started elsewhere
// is outside.
func joinCgroupNS(pidfd int) error {
	home, err := os.Open("/proc/thread-self/ns/cgroup")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Setns(pidfd, unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	outside, err := outsideCgroupNS()
	if err == nil && !outside {
		return nil
	}
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWCGROUP); back != nil {
		return errors.Join(err, back)
	}
	if err == nil {
		err = errors.New("the daemon's own group is not below the one for jails, and the mount has nsdelegate")
	}
	return err
}

// outsideCgroupNS reports whether this thread's group is outside of its cgroup
// namespace and the kernel minds.
func outsideCgroupNS() (bool, error) {
	own, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return false, err
	}
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false, err
	}
	return strings.Contains(string(own), "0::/..") && strings.Contains(string(mounts), "nsdelegate"), nil
}

// newSpawner builds the template over the skeleton folder base. The thread's
// cgroup namespace, which jails inherit, has the group top as its root if that
// can be had; see enterCgroupNS.
func newSpawner(base string, opt bool, top group) (*spawner, error) {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	ready := make(chan error, 1)
	// The thread ends with the goroutine: it is never as it was.
	onThread(func() bool {
		defer close(s.done)
		s.ownCgroupNS = enterCgroupNS(top)
		err := buildTemplate(base, opt)
		ready <- err
		if err != nil {
			return false
		}
		for job := range s.jobs {
			job()
		}
		return false
	})
	if err := <-ready; err != nil {
		<-s.done
		return nil, err
	}
	return s, nil
}

// do runs f on the thread.
func (s *spawner) do(f func()) {
	finished := make(chan struct{})
	s.jobs <- func() {
		defer close(finished)
		f()
	}
	<-finished
}

// close ends the thread and with it every jail.
func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}

// buildTemplate leaves the host's mount namespace for a new one with usr, opt,
// base, dev, proc, mask and maskdir, all read-only, and layer, files, layers
// and mem to mount on. Its procfs is a new one, because a jail may mount its own only where an
// uncovered one is to be seen, and the host's may have things mounted over it.
func buildTemplate(base string, opt bool) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("template: unshare: %w", err)
	}
	// The threads' supplementary groups would pass to the jails; this drops them
	// on this thread only.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("template: setgroups: %w", errno)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("template: private mounts: %w", err)
	}
	root, err := sys.Filesystem("tmpfs", attrPlain, "mode", "0755", "size", "1m", "nr_inodes", "256")
	if err != nil {
		return fmt.Errorf("template: %w", err)
	}
	defer unix.Close(root)
	old, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("template: %w", err)
	}
	defer unix.Close(old)
	if err := unix.MoveMount(root, "", old, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("template: move_mount: %w", err)
	}
	if err := fillTemplate(root, base, opt); err != nil {
		return fmt.Errorf("template: %w", err)
	}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("template: read-only: %w", err)
	}
	if err := sys.EnterRoot(root); err != nil {
		return fmt.Errorf("template: %w", err)
	}
	return nil
}

func fillTemplate(root int, base string, opt bool) error {
	folders := []string{"usr", "base", "dev", "dev/pts", "dev/shm", "proc", "maskdir", "layer", "files", "mem", "stage", "layers"}
	for n := range rootfs.MaxLayers {
		folders = append(folders, fmt.Sprintf("layers/%d", n))
	}
	trees := map[string]string{"usr": "/usr", "base": base}
	if opt {
		folders, trees["opt"] = append(folders, "opt"), "/opt"
	}
	for _, name := range folders {
		if err := unix.Mkdirat(root, name, 0o755); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := unix.Fchmodat(root, name, 0o755, 0); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := touchAt(root, "mask"); err != nil {
		return err
	}
	for name, from := range trees {
		if err := attachTree(unix.AT_FDCWD, from, true, attrRO, root, name); err != nil {
			return err
		}
	}
	proc, err := sys.Filesystem("proc", attrNoexec)
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	if err := sys.Attach(proc, root, "proc"); err != nil {
		return err
	}
	return fillDev(root)
}

func fillDev(root int) error {
	for name, number := range devices {
		var st unix.Stat_t
		if err := unix.Lstat("/dev/"+name, &st); err != nil {
			return fmt.Errorf("/dev/%s: %w", name, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != number {
			return fmt.Errorf("/dev/%s is not the device it should be", name)
		}
		if err := touchAt(root, "dev/"+name); err != nil {
			return err
		}
		err := attachTree(unix.AT_FDCWD, "/dev/"+name, false, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, root, "dev/"+name)
		if err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := unix.Symlinkat(target, root, "dev/"+name); err != nil {
			return fmt.Errorf("/dev/%s: %w", name, err)
		}
	}
	return nil
}

func touchAt(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, 0o444)
}

func attachTree(dir int, path string, recursive bool, attr uint64, root int, target string) error {
	tree, err := sys.Tree(dir, path, recursive, attr)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return sys.Attach(tree, root, target)
}

// sealedInit copies the sandbox-init binary to a memfd that nobody can change:
// a jail reaches no file of the host's through its /proc/1/exe.
func sealedInit(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("jail: sandbox-init: %w", err)
	}
	defer src.Close()
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("sandbox-init", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before 6.3 every memfd was executable
		fd, err = unix.MemfdCreate("sandbox-init", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("jail: memfd: %w", err)
	}
	dst := os.NewFile(uintptr(fd), "sandbox-init")
	if _, err := dst.ReadFrom(src); err != nil {
		dst.Close()
		return nil, fmt.Errorf("jail: copy sandbox-init: %w", err)
	}
	if err := dst.Chmod(0o555); err != nil {
		dst.Close()
		return nil, fmt.Errorf("jail: sandbox-init: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		dst.Close()
		return nil, fmt.Errorf("jail: seal sandbox-init: %w", err)
	}
	return dst, nil
}
