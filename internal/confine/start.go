package confine

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TimerSlack is how late the timers of the daemon and of its roles may be (the
// kernel's default is 50 µs). Go's monitor thread sleeps for 20 µs at a time
// while anything runs: with the default it woke up eight times in a call of half
// a millisecond, on a processor that the call needed, and took a seventh of the
// call's processor time. No deadline here is that fine.
const TimerSlack = 500 * time.Microsecond

// Start starts cmd as an unprivileged process: as uid and gid without
// supplementary groups, with no capability in any set (the bounding set too),
// with no_new_privs, in a session of its own, and dying with the caller's
// process. What cmd.SysProcAttr says besides (namespaces, cgroup) is kept,
// except a user namespace, in which the process would be born with every
// capability. cmd.Env nil becomes an empty environment.
//
// The caller is root with CAP_SETUID, CAP_SETGID and CAP_SETPCAP, and waits for
// cmd as usual.
func Start(cmd *exec.Cmd, uid, gid uint32) error {
	if uid == 0 || gid == 0 {
		return &PrivilegeError{What: "uid or gid to start as", Found: "0", Needed: "an unprivileged one"}
	}
	attr := cmd.SysProcAttr
	if attr == nil {
		attr = &syscall.SysProcAttr{}
	}
	if (attr.Cloneflags|attr.Unshareflags)&unix.CLONE_NEWUSER != 0 {
		return errors.New("confine: a confined process must not be born in a user namespace of its own")
	}
	var pidfd int
	attr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	attr.Pdeathsig = syscall.SIGKILL
	attr.Setsid = true
	if attr.PidFD == nil {
		attr.PidFD = &pidfd
	}
	cmd.SysProcAttr = attr
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	started := make(chan error)
	go startOnThread(cmd, attr.PidFD, attr.PidFD == &pidfd, started)
	return <-started
}

// StartBare starts cmd as the caller's own user without any capability, also if
// that is root: with an empty bounding set, no_new_privs, in a session of its
// own, and dying with the caller's process. It is for programs of the
// operator's, not for roles: files that belong to the user stay within reach.
func StartBare(cmd *exec.Cmd) error {
	var pidfd int
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true, PidFD: &pidfd}
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	started := make(chan error)
	go startOnThread(cmd, &pidfd, true, started)
	return <-started
}

// startOnThread gives up, on a thread of its own, what the child shall not
// inherit. The bounding set and no_new_privs belong to a thread, and a child
// gets those of the thread that made it. The thread can serve for nothing else
// afterwards; it stays until the child ends, because Pdeathsig means the death
// of the thread, and then ends as well, as its goroutine never unlocks it.
func startOnThread(cmd *exec.Cmd, pidfd *int, own bool, started chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread can never end, and it is the one that shows as the
		// whole process. While it is held here, another goroutine cannot be on it.
		moved := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(moved)
			startOnThread(cmd, pidfd, own, started)
		}()
		<-moved
		runtime.UnlockOSThread()
		return
	}
	if err := dropBounding(); err != nil {
		started <- err
		return
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		started <- fmt.Errorf("confine: no_new_privs: %w", err)
		return
	}
	// Nothing but speed depends on it.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(TimerSlack), 0, 0, 0)
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	watch, err := unix.FcntlInt(uintptr(*pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if own {
		closeQuietly(*pidfd)
	}
	if err != nil {
		// Without it the child would die when this thread does; better now.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		started <- fmt.Errorf("confine: watch the process: %w", err)
		return
	}
	started <- nil
	waitEnd(watch)
	closeQuietly(watch)
}

// dropBounding empties the calling thread's capability bounding set.
func dropBounding() error {
	for c := uintptr(0); c < 64; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_AUDIT_READ {
			return nil // past the kernel's last capability
		}
		if err != nil {
			return fmt.Errorf("confine: drop capability %d from the bounding set: %w", c, err)
		}
	}
	return nil
}

// waitEnd returns when the process has ended, without reaping it: a pidfd
// becomes readable then.
func waitEnd(pidfd int) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, -1)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}
