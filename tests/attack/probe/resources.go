package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func init() { modes["flood"] = flood }

// resources: limits that hold without a cgroup controller (table D).
func resources() map[string]func() string {
	out := map[string]func() string{
		"D01 fork":               forkBomb,
		"D03 large pipe":         largePipe,
		"D03 lock memory":        func() string { return text(unix.Mlock(make([]byte, 64<<20))) },
		"D04 inodes of /tmp":     func() string { return manyFiles("/tmp") },
		"D04 inodes of /dev/shm": func() string { return manyFiles("/dev/shm") },
		"D05 fill /tmp":          func() string { return fill("/tmp/fill") },
		"D05 fill /dev/shm":      func() string { return fill("/dev/shm/fill") },
		"D06 descriptors":        manyDescriptors,
		"D08 zombies":            zombies,
	}
	for name, resource := range map[string]int{
		"core": unix.RLIMIT_CORE, "realtime": unix.RLIMIT_RTPRIO, "nice": unix.RLIMIT_NICE, "files": unix.RLIMIT_NOFILE,
	} {
		out["D02 rlimit "+name] = func() string { return rlimit(resource) }
	}
	return out
}

// forkBomb makes processes that only wait, until it may not; then it ends them.
func forkBomb() string {
	const enough = 5000
	var children []uintptr
	defer func() {
		for _, pid := range children {
			_ = unix.Kill(int(pid), unix.SIGKILL)
		}
	}()
	for range enough {
		pid, _, errno := unix.RawSyscall(unix.SYS_FORK, 0, 0, 0)
		if errno != 0 {
			return text(errno)
		}
		if pid == 0 {
			for {
				unix.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
			}
		}
		children = append(children, pid)
	}
	return "no limit"
}

func rlimit(resource int) string {
	var lim unix.Rlimit
	if err := unix.Getrlimit(resource, &lim); err != nil {
		return text(err)
	}
	return fmt.Sprint(lim.Max)
}

func largePipe() string {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return text(err)
	}
	_, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 16<<20)
	return text(err)
}

// enough is more than any limit that the test sets.
const (
	enoughFiles = 400_000
	enoughBytes = 256 << 20
)

func manyFiles(dir string) string {
	dir = filepath.Join(dir, "many")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return text(err)
	}
	defer os.RemoveAll(dir)
	for i := range enoughFiles {
		fd, err := unix.Open(fmt.Sprint(dir, "/", i), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return text(err)
		}
		unix.Close(fd)
	}
	return "no limit"
}

func fill(path string) string {
	file, err := os.Create(path)
	if err != nil {
		return text(err)
	}
	defer os.Remove(path)
	defer file.Close()
	block := make([]byte, 1<<20)
	for written := 0; written < enoughBytes; written += len(block) {
		if _, err := file.Write(block); err != nil {
			return text(err)
		}
	}
	return "no limit"
}

func manyDescriptors() string {
	highest := 0
	for range 1 << 20 {
		fd, err := unix.Dup(0)
		if err != nil {
			return fmt.Sprintf("%s at %d", text(err), highest+1)
		}
		highest = fd
	}
	return "no limit"
}

// zombies leaves children of children behind, and counts those that init does
// not reap in time.
func zombies() string {
	const orphans = 100
	for range orphans {
		cmd := exec.Command("/bin/sh", "-c", "true & true & exit 0")
		if err := cmd.Run(); err != nil {
			return text(err)
		}
	}
	var left int
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		left = 0
		stats, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			return text(err)
		}
		for _, path := range stats {
			// pid (name) state …
			if _, rest, ok := strings.Cut(slurp(path), ") "); ok && strings.HasPrefix(rest, "Z") {
				left++
			}
		}
		if left == 0 {
			return "all reaped"
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Sprint(left, " left")
}

// flood writes 64 MiB without a newline.
func flood([]string) error {
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = 'y'
	}
	for range 64 {
		if _, err := os.Stdout.Write(block); err != nil && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return nil
}
