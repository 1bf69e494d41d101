package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() { modes["link"] = link }

// link makes a symlink, args[1] to args[0].
func link(args []string) error {
	if len(args) != 2 {
		return errors.New("link what where?")
	}
	return os.Symlink(args[0], args[1])
}

// files: paths, and what Landlock does and does not stop (table C).
func files() map[string]func() string {
	const workspace = "/workspace/probe-file"
	isType := func(mask fs.FileMode) func() string {
		return func() string { return find(func(d fs.DirEntry) bool { return d.Type()&mask != 0 }) }
	}
	out := map[string]func() string{
		"C01 create in workspace":    creates(workspace),
		"C01 execute in workspace":   func() string { return executes("/workspace/probe-copy") },
		"C01 execute in /tmp":        func() string { return executes("/tmp/probe-copy") },
		"C01 truncate /etc/passwd":   opens("/etc/passwd", unix.O_RDONLY|unix.O_TRUNC),
		"C01 append /etc/hosts":      opens("/etc/hosts", unix.O_WRONLY|unix.O_APPEND),
		"C01 write /usr/bin/env":     opens("/usr/bin/env", unix.O_WRONLY),
		"C01 write /dev/null":        opens("/dev/null", unix.O_WRONLY),
		"C01 execute a device":       raw(unix.SYS_EXECVE, str("/dev/null"), 0, 0),
		"C01 rename to /tmp":         func() string { return moved(workspace+"2", "/tmp/x") },
		"C01 rename in workspace":    func() string { return moved(workspace+"3", "/workspace/y") },
		"C01 link a host's program":  func() string { return text(os.Link("/usr/bin/env", "/workspace/env")) },
		"C01 unlink a program":       func() string { return text(os.Remove("/usr/bin/env")) },
		"C01 replace resolv.conf":    func() string { return text(os.Remove("/etc/resolv.conf")) },
		"C02 chmod a program":        func() string { return text(os.Chmod("/usr/bin/env", 0o777)) },
		"C02 chown a program":        func() string { return text(os.Chown("/usr/bin/env", os.Getuid(), os.Getgid())) },
		"C02 utimes of a program":    func() string { return text(os.Chtimes("/usr/bin/env", time.Now(), time.Now())) },
		"C02 setxattr on a program":  func() string { return text(unix.Setxattr("/usr/bin/env", "user.x", []byte("x"), 0)) },
		"C02 chmod /etc/passwd":      func() string { return text(os.Chmod("/etc/passwd", 0o666)) },
		"C02 chmod /dev/null":        func() string { return text(os.Chmod("/dev/null", 0o600)) },
		"C02 chown to root":          chownToRoot,
		"C02 file capabilities":      fileCapabilities,
		"C02 trusted attribute":      func() string { return text(unix.Setxattr("/workspace", "trusted.overlay.opaque", []byte("y"), 0)) },
		"C04 sockets in the tree":    isType(fs.ModeSocket),
		"C04 FIFOs in the tree":      isType(fs.ModeNamedPipe),
		"C04 devices outside /dev":   isType(fs.ModeDevice),
		"C06 mkfifo in workspace":    func() string { return text(unix.Mkfifo("/workspace/fifo", 0o600)) },
		"C06 ioctl on a device":      deviceIoctl,
		"C07 nest Landlock":          nestLandlock,
		"C09 folders to write in":    writableFolders,
		"C08 POSIX message queue":    raw(unix.SYS_MQ_OPEN, str("probe"), unix.O_CREAT|unix.O_RDWR, 0o600, 0),
		"C10 symlink to init's root": func() string { return throughLink("/proc/1/root/etc/shadow") },
		"C10 read /etc/shadow":       opens("/etc/shadow", unix.O_RDONLY),
		"C10 host's files":           hostFiles,
	}
	for _, dir := range []string{"/", "/etc", "/usr", "/usr/local", "/bin", "/root", "/var", "/run", "/dev", "/proc", "/proc/sys", "/home"} {
		out["C01 create in "+dir] = creates(filepath.Join(dir, "probe-file"))
	}
	return out
}

func creates(path string) func() string {
	return func() string {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return text(err)
		}
		unix.Close(fd)
		return text(os.Remove(path))
	}
}

func executes(path string) string {
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 7\n"), 0o755); err != nil {
		return "write: " + text(err)
	}
	defer os.Remove(path)
	err := exec.Command(path).Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Sprint("ran, code ", exit.ExitCode())
	}
	return text(err)
}

func moved(from, to string) string {
	if err := os.WriteFile(from, nil, 0o600); err != nil {
		return "write: " + text(err)
	}
	defer os.Remove(from)
	defer os.Remove(to)
	return text(os.Rename(from, to))
}

func chownToRoot() string {
	const path = "/workspace/probe-chown"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return text(err)
	}
	defer os.Remove(path)
	return text(os.Chown(path, 0, 0))
}

// fileCapabilities gives a file CAP_SYS_ADMIN, in the format of version 2.
func fileCapabilities() string {
	const path = "/workspace/probe-caps"
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		return text(err)
	}
	defer os.Remove(path)
	value := make([]byte, 20)
	value[0], value[3], value[6] = 1, 2, 1<<(unix.CAP_SYS_ADMIN-16)
	return text(unix.Setxattr(path, "security.capability", value, 0))
}

// find lists what is of a kind, in the whole tree but /proc and /dev.
func find(want func(fs.DirEntry) bool) string {
	var out []string
	seen := 0
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // what cannot be read holds nothing for us
		}
		if path == "/proc" || path == "/dev" {
			return fs.SkipDir
		}
		seen++
		if want(d) {
			out = append(out, path)
		}
		return nil
	})
	if err != nil || seen < 500 {
		return fmt.Sprintf("only %d files seen, %v", seen, err)
	}
	return strings.Join(out, " ")
}

// deviceIoctl asks the random device to forget what it has gathered.
func deviceIoctl() string {
	fd, err := unix.Open("/dev/urandom", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "open: " + text(err)
	}
	defer unix.Close(fd)
	return text(unix.IoctlSetInt(fd, unix.RNDZAPENTCNT, 0))
}

// nestLandlock stacks rulesets until the kernel says that it is enough.
func nestLandlock() string {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return text(err)
	}
	attr := [3]uint64{0, 1, 0} // handles binding TCP ports
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 16, 0)
	if errno != 0 {
		return "ruleset: " + text(errno)
	}
	for range 20 {
		if err := call(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0); err != nil {
			return "nested until " + text(err)
		}
	}
	return "no end"
}

// writableFolders lists where a file can be made, in the whole tree but /proc
// and, to save time, what is below /usr.
func writableFolders() string {
	var out []string
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		if path == "/proc" || path == "/usr" {
			return fs.SkipDir
		}
		if creates(filepath.Join(path, ".probe"))() == "ok" {
			out = append(out, path)
			return fs.SkipDir // below, it is the tenant's own
		}
		return nil
	})
	if err != nil {
		return text(err)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func throughLink(target string) string {
	const link = "/workspace/probe-link"
	if err := os.Symlink(target, link); err != nil {
		return "link: " + text(err)
	}
	defer os.Remove(link)
	return opens(link, unix.O_RDONLY)()
}

// hostFiles are what a host has and a jail does not.
func hostFiles() string {
	var out []string
	for _, path := range []string{
		"/boot", "/etc/ssh", "/etc/sudoers", "/etc/shadow", "/etc/machine-id", "/etc/fstab", "/etc/systemd", "/etc/apt",
		"/root/.ssh", "/root/.bashrc", "/root/.npmrc", "/root/.gitconfig", "/etc/npmrc", "/etc/pip.conf", "/etc/gitconfig",
		"/var/log/dpkg.log", "/var/lib/dpkg", "/run/systemd", "/run/docker.sock", "/srv", "/mnt", "/media", "/lost+found",
		"/var/lib/sandboxd", "/run/sandboxd", "/etc/sandboxd",
	} {
		if _, err := os.Lstat(path); err == nil {
			out = append(out, path)
		}
	}
	return strings.Join(out, " ")
}
