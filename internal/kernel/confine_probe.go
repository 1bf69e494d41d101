package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp/bpf"
)

// scopeABI is the first Landlock with scopes.
const scopeABI = 6

// tryConfining confines this process step by step.
func tryConfining() trials {
	runtime.LockOSThread()
	out := trials{}
	abi, _ := landlockVersion()
	if abi == 0 {
		out["landlock"] = tried(errors.New("no Landlock in this kernel, or not enabled at boot"))
	} else {
		out["landlock"] = tried(tryPathRules())
	}
	if abi < scopeABI {
		out["scopes"] = tried(fmt.Errorf("no scopes before ABI %d", scopeABI))
	} else {
		out["scopes"] = tried(tryScopes())
	}
	out["seccomp"] = tried(trySeccomp())
	return out
}

// tryPathRules forbids every path but /proc, which libpsx needs to find the
// threads, and looks at the root.
func tryPathRules() error {
	if err := landlock.V1.RestrictPaths(landlock.RODirs("/proc")); err != nil {
		return err
	}
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return expect("opening /", err, unix.EACCES)
}

// tryScopes proves the scopes by what they do: a distribution's kernel was seen
// to report this version without them.
func tryScopes() error {
	fds := [2]int{}
	for i := range fds {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	outside := &unix.SockaddrUnix{Name: fmt.Sprintf("@sandboxd-probe-%d", os.Getpid())}
	if err := unix.Bind(fds[0], outside); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(fds[0], 1); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := landlock.V6.RestrictScoped(); err != nil {
		return err
	}
	return errors.Join(
		expect("connecting to an abstract socket outside", unix.Connect(fds[1], outside), unix.EPERM),
		expect("signalling a process outside", unix.Kill(os.Getppid(), 0), unix.EPERM),
		// Threads of one process may still signal each other.
		unix.Tgkill(os.Getpid(), os.Getpid(), 0),
	)
}

// probeErrno is an answer that the kernel itself never gives to getppid.
const probeErrno = unix.EXDEV

// trySeccomp loads a filter that changes one call's answer, on all threads.
func trySeccomp() error {
	for _, action := range []uint32{unix.SECCOMP_RET_KILL_PROCESS, unix.SECCOMP_RET_ERRNO} {
		if err := actionAvailable(action); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	err := bpf.Load([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_GETPPID},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(probeErrno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	})
	if err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
	return expect("a filtered call", errno, probeErrno)
}
