package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// probeCgroup finds cgroup v2 and tries, in a child of this process's own group,
// what a jail's end depends on.
func probeCgroup(ctx context.Context, exe string, f *Features) {
	f.CgroupV2Dir = cgroupMount()
	if f.CgroupV2Dir == "" {
		none := tried(errors.New("cgroup v2 is not mounted"))
		f.CgroupKill, f.CgroupFreeze, f.CloneIntoCgroup = none, none, none
		return
	}
	f.CgroupOwnDir = ownCgroup(f.CgroupV2Dir)
	f.CgroupControllers = cgroupControllers(f.CgroupOwnDir)
	f.CgroupHostControllers = cgroupControllers(f.CgroupV2Dir)
	dir, err := os.MkdirTemp(f.CgroupOwnDir, "sandboxd-probe-")
	if err != nil {
		failed := tried(fmt.Errorf("make a cgroup: %w", err))
		f.CgroupKill, f.CgroupFreeze, f.CloneIntoCgroup = failed, failed, failed
		return
	}
	defer removeCgroup(dir)
	group, err := os.Open(dir)
	if err != nil {
		failed := tried(err)
		f.CgroupKill, f.CgroupFreeze, f.CloneIntoCgroup = failed, failed, failed
		return
	}
	defer group.Close()
	f.CloneIntoCgroup = tried(tryClone(&syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}))
	f.CgroupFreeze, f.CgroupKill = tryFreezeAndKill(ctx, exe, group)
}

func cgroupControllers(dir string) []string {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

// cgroupMount finds the cgroup2 mount in mountinfo, "" if there is none.
func cgroupMount() string {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// id parent dev root target options [tags] - type source options
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(left)
		if ok && strings.HasPrefix(right, "cgroup2 ") && len(fields) > 4 {
			return unescape(fields[4])
		}
	}
	return ""
}

// unescape undoes mountinfo's octal escapes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// ownCgroup is this process's folder in the v2 hierarchy, or the mount's root if
// it cannot be seen from here.
func ownCgroup(mount string) string {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return mount
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			dir := filepath.Join(mount, path)
			if _, err := os.Stat(dir); err == nil {
				return dir
			}
		}
	}
	return mount
}

// tryFreezeAndKill puts a process into the group, freezes it, and kills it there
// while it is frozen.
func tryFreezeAndKill(ctx context.Context, exe string, group *os.File) (freeze, kill Trial) {
	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	cmd := helperCommand(ctx, exe, helperWait, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())})
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return tried(err), tried(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return tried(err), tried(err)
	}
	if err := cmd.Start(); err != nil {
		failed := tried(fmt.Errorf("start a process in the cgroup: %w", err))
		return failed, failed
	}
	if _, err := io.ReadFull(stdout, make([]byte, 1)); err != nil {
		failed := tried(fmt.Errorf("the process in the cgroup: %w", err))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return failed, failed
	}
	freeze = tried(tryFreeze(ctx, group.Name()))
	kill = tried(writeFile(group.Name(), "cgroup.kill", "1"))
	if !kill.OK {
		_ = writeFile(group.Name(), "cgroup.freeze", "0")
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return freeze, kill
	}
	_ = cmd.Wait() // how it ended is looked at below
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || status.Signal() != syscall.SIGKILL || ctx.Err() != nil {
		kill = tried(fmt.Errorf("the process ended otherwise: %v", cmd.ProcessState))
	}
	return freeze, kill
}

func writeFile(dir, name, value string) error {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

// tryFreeze freezes the group and waits until the kernel says that it is.
func tryFreeze(ctx context.Context, dir string) error {
	if err := writeFile(dir, "cgroup.freeze", "1"); err != nil {
		return err
	}
	return waitEvents(ctx, dir, "frozen 1")
}

// waitEvents waits until cgroup.events has the line.
func waitEvents(ctx context.Context, dir, line string) error {
	fd, err := unix.Open(filepath.Join(dir, "cgroup.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cgroup.events: %w", err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 256)
	for {
		n, err := unix.Pread(fd, buf, 0)
		if err != nil {
			return fmt.Errorf("cgroup.events: %w", err)
		}
		if strings.Contains(string(buf[:n]), line) {
			return nil
		}
		// The file signals each change with POLLPRI; look up now and then for
		// the context's end.
		const slice = 50 * time.Millisecond
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}
		if _, err := unix.Poll(fds, int(slice.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cgroup.events: %w", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for %q: %w", line, ctx.Err())
		}
	}
}

// removeCgroup removes an empty group. The kernel lets go of a dead process a
// moment after its parent has seen the death.
func removeCgroup(dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), helperLimit)
	defer cancel()
	if waitEvents(ctx, dir, "populated 0") == nil {
		_ = os.Remove(dir)
	}
}
