package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// privileges: namespaces, init, /proc, devices, the terminal (table A).
func privileges() map[string]func() string {
	out := map[string]func() string{
		"A03 write /proc/self/exe":      opens("/proc/self/exe", unix.O_WRONLY),
		"A03 open /proc/1/exe":          opens("/proc/1/exe", unix.O_RDONLY),
		"A03 open /proc/1/mem":          opens("/proc/1/mem", unix.O_RDWR),
		"A07 mount over own proc":       func() string { return text(unix.Mount("tmpfs", "/proc", "tmpfs", 0, "")) },
		"A10 mount tmpfs":               func() string { return text(unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "")) },
		"A10 bind":                      func() string { return text(unix.Mount("/usr", "/tmp", "", unix.MS_BIND, "")) },
		"A10 remount writable":          func() string { return text(unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "")) },
		"A10 umount":                    func() string { return text(unix.Unmount("/proc/sys", unix.MNT_DETACH)) },
		"A10 umount root":               func() string { return text(unix.Unmount("/", unix.MNT_DETACH)) },
		"A10 pivot_root":                func() string { return text(unix.PivotRoot(".", ".")) },
		"A10 chroot":                    func() string { return text(unix.Chroot("/tmp")) },
		"A10 open_tree":                 raw(unix.SYS_OPEN_TREE, at(), str("/"), 1),
		"A10 move_mount":                raw(unix.SYS_MOVE_MOUNT, at(), str("/tmp"), at(), str("/usr")),
		"A10 fsopen":                    raw(unix.SYS_FSOPEN, str("tmpfs"), 0),
		"A10 fspick":                    raw(unix.SYS_FSPICK, at(), str("/"), 0),
		"A10 mount_setattr":             raw(unix.SYS_MOUNT_SETATTR, at(), str("/usr"), 0, 0, 32),
		"A10 above the root":            aboveRoot,
		"A12 open init's namespaces":    opens("/proc/1/ns/mnt", unix.O_RDONLY),
		"A12 open init's root":          opens("/proc/1/root/", unix.O_RDONLY|unix.O_DIRECTORY),
		"A12 open init's cwd":           opens("/proc/1/cwd/", unix.O_RDONLY|unix.O_DIRECTORY),
		"A12 read init's environment":   opens("/proc/1/environ", unix.O_RDONLY),
		"A12 setns":                     setns,
		"A13 setuid 0":                  raw(unix.SYS_SETUID, 0),
		"A13 setresuid 0":               raw(unix.SYS_SETRESUID, 0, 0, 0),
		"A13 setgroups":                 raw(unix.SYS_SETGROUPS, 0, 0),
		"A13 keep and ambient":          ambient,
		"A13 setuid bit in workspace":   func() string { return setuidFile("/workspace/suid") },
		"A13 dumpable":                  func() string { return text(unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)) },
		"A13 lower oom score":           func() string { return text(os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)) },
		"A14 mount cgroup":              func() string { return text(unix.Mount("c", "/tmp", "cgroup", 0, "")) },
		"A14 mount cgroup2":             func() string { return text(unix.Mount("c", "/tmp", "cgroup2", 0, "")) },
		"A15 writable under /proc/sys":  func() string { return writableUnder("/proc/sys") },
		"A15 core_pattern":              opens("/proc/sys/kernel/core_pattern", unix.O_WRONLY),
		"A15 sysrq-trigger":             opens("/proc/sysrq-trigger", unix.O_WRONLY),
		"A15 own uid_map":               func() string { return text(os.WriteFile("/proc/self/uid_map", []byte("0 0 1"), 0)) },
		"A15 max_user_namespaces":       func() string { return strings.TrimSpace(slurp("/proc/sys/user/max_user_namespaces")) },
		"A16 mknod character device":    func() string { return text(unix.Mknod("/tmp/c", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1)))) },
		"A16 mknod block device":        func() string { return text(unix.Mknod("/workspace/b", unix.S_IFBLK|0o666, int(unix.Mkdev(8, 0)))) },
		"A16 /dev/null is null":         isNull,
		"A21 push input (TIOCSTI)":      raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, str("x")),
		"A21 push input, high bits":     raw(unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI, str("x")),
		"A21 console (TIOCLINUX)":       raw(unix.SYS_IOCTL, 0, 0x541c, str("\x02")),
		"A21 console (TIOCCONS)":        raw(unix.SYS_IOCTL, 0, unix.TIOCCONS),
		"A21 line discipline":           raw(unix.SYS_IOCTL, 0, 0x5423, str("\x10")),
		"A21 controlling terminal":      opens("/dev/tty", unix.O_RDWR),
		"A22 kill init":                 raw(unix.SYS_KILL, 1, uintptr(unix.SIGKILL)),
		"A22 stop init":                 raw(unix.SYS_KILL, 1, uintptr(unix.SIGSTOP)),
		"A22 signal init by thread":     raw(unix.SYS_TGKILL, 1, 1, uintptr(unix.SIGKILL)),
		"A22 signal init by descriptor": signalInitByDescriptor,
		"A22 reboot":                    raw(unix.SYS_REBOOT, 0xfee1dead, 0x28121969, 0x4321fedc),
		"A23 sethostname":               raw(unix.SYS_SETHOSTNAME, str("x"), 1),
		"A23 limits raise":              raiseLimit,
	}
	for name, flag := range map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
	} {
		out["A11 unshare "+name] = raw(unix.SYS_UNSHARE, flag)
		if name != "time" { // in clone that bit is the exit signal's
			out["A11 clone "+name] = raw(unix.SYS_CLONE, flag|uintptr(unix.SIGCHLD))
			out["A11 clone "+name+", high bits"] = raw(unix.SYS_CLONE, 1<<32|flag|uintptr(unix.SIGCHLD))
		}
	}
	for _, path := range []string{
		"/dev/kmsg", "/dev/mem", "/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/loop0", "/dev/loop-control", "/dev/vda",
		"/dev/vsock", "/dev/console", "/dev/vhost-net", "/dev/userfaultfd",
		"/sys/kernel/security", "/sys/fs/cgroup", "/sys/firmware",
	} {
		out["A16 open "+path] = opens(path, unix.O_RDONLY)
	}
	for _, name := range []string{
		"kcore", "keys", "kmsg", "kallsyms", "timer_list", "sched_debug", "latency_stats", "acpi", "scsi", "asound",
		"interrupts", "kpagecount", "kpageflags", "vmallocinfo", "iomem", "ioports", "modules", "slabinfo", "config.gz",
		"bus", "irq", "fs", "mounts", "cmdline", "version", "meminfo", "stat", "uptime", "loadavg", "diskstats",
	} {
		out["F08 bytes of /proc/"+name] = func() string { return readable("/proc/" + name) }
	}
	return out
}

// setns joins this process's own namespaces, which needs nothing but the call.
func setns() string {
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "open: " + text(err)
	}
	defer unix.Close(fd)
	return text(unix.Setns(fd, 0))
}

// aboveRoot walks up further than any path is long, and compares.
func aboveRoot() string {
	if err := os.Chdir("/" + strings.Repeat("../", 200)); err != nil {
		return text(err)
	}
	var up, root unix.Stat_t
	if err := errors.Join(unix.Stat(".", &up), unix.Stat("/", &root)); err != nil {
		return text(err)
	}
	if up.Ino != root.Ino || up.Dev != root.Dev {
		return "another root"
	}
	return "the root"
}

func ambient() string {
	keep := text(unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0))
	raise := text(unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0))
	return keep + " " + raise
}

// setuidFile makes a setuid file; with nosuid and no_new_privs it means nothing.
func setuidFile(path string) string {
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		return text(err)
	}
	defer os.Remove(path)
	return text(unix.Chmod(path, 0o4755))
}

// writableUnder lists what can be opened to write. Opening alone changes
// nothing.
func writableUnder(dir string) string {
	var out []string
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // a folder that cannot be read holds nothing for us
		}
		seen++
		if opens(path, unix.O_WRONLY)() == "ok" {
			out = append(out, strings.TrimPrefix(path, dir))
		}
		return nil
	})
	if err != nil || seen < 100 {
		return fmt.Sprintf("only %d files seen, %v", seen, err)
	}
	return strings.Join(out, " ")
}

func isNull() string {
	var st unix.Stat_t
	if err := unix.Lstat("/dev/null", &st); err != nil {
		return text(err)
	}
	return fmt.Sprintf("%o %d:%d", st.Mode&unix.S_IFMT, unix.Major(st.Rdev), unix.Minor(st.Rdev))
}

func signalInitByDescriptor() string {
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return "open: " + text(err)
	}
	defer unix.Close(fd)
	return text(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
}

func raiseLimit() string {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return text(err)
	}
	lim.Max++
	lim.Cur = lim.Max
	return text(unix.Prlimit(0, unix.RLIMIT_NOFILE, &lim, nil))
}

// readable says whether a file gives anything away.
func readable(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return text(err)
	}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return text(err)
		}
		return fmt.Sprintf("%t", len(entries) > 0)
	}
	file, err := os.Open(path)
	if err != nil {
		return text(err)
	}
	defer file.Close()
	n, _ := file.Read(make([]byte, 64))
	return fmt.Sprintf("%t", n > 0)
}
