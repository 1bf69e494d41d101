package seccomp

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const childEnv = "SECCOMP_TEST_CHILD"

// TestMain runs the child role: a filter cannot be taken off again, so each
// test of a loaded one is a process of its own.
func TestMain(m *testing.M) {
	role := os.Getenv(childEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := child(role); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// goRuntime is enough for a Go program to run to its end.
var goRuntime = []string{
	"read", "write", "close", "futex", "mmap", "munmap", "madvise", "mprotect", "rt_sigaction", "rt_sigprocmask",
	"rt_sigreturn", "sigaltstack", "gettid", "getpid", "tgkill", "nanosleep", "sched_yield", "sched_getaffinity",
	"epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2", "exit", "exit_group", "clone", "clone3", "rseq",
	"set_robust_list", "restart_syscall", "getrandom", "clock_gettime", "arch_prctl", "prctl",
}

type call struct {
	Nr   uintptr
	Args [3]uintptr
	Want int // errno
}

func calls() []call {
	const high = 1 << 32
	return []call{
		{unix.SYS_GETPPID, [3]uintptr{}, int(unix.ENOSYS)},
		{unix.SYS_GETUID, [3]uintptr{}, int(unix.EPERM)},
		{unix.SYS_SOCKET, [3]uintptr{unix.AF_UNIX, unix.SOCK_STREAM, 0}, 0},
		{unix.SYS_SOCKET, [3]uintptr{unix.AF_INET, unix.SOCK_STREAM, 0}, int(unix.EAFNOSUPPORT)},
		{unix.SYS_SOCKET, [3]uintptr{high | unix.AF_INET, unix.SOCK_STREAM, 0}, int(unix.EAFNOSUPPORT)},
		{unix.SYS_SOCKET, [3]uintptr{high | unix.AF_PACKET, unix.SOCK_RAW, 0}, int(unix.EAFNOSUPPORT)},
		{999, [3]uintptr{}, int(unix.ENOSYS)},
	}
}

func childFilter() *Filter {
	return &Filter{
		Allow:   goRuntime,
		AllowIf: []Rule{{Name: "socket", Args: []Arg{Is(0, unix.AF_UNIX)}}},
		Errno:   map[string]unix.Errno{"getuid": unix.EPERM, "socket": unix.EAFNOSUPPORT},
		Kill:    []string{"reboot"},
	}
}

// child loads the filter while other threads run, and then does what role says.
func child(role string) error {
	prog, err := Compile(childFilter())
	if err != nil {
		return err
	}
	if prog, err = Unmarshal(Marshal(prog)); err != nil {
		return err
	}
	// A thread that existed before the filter, and must have it afterwards.
	ask, answer := make(chan call), make(chan int)
	go func() {
		runtime.LockOSThread()
		for c := range ask {
			_, _, e := unix.RawSyscall(c.Nr, c.Args[0], c.Args[1], c.Args[2])
			answer <- int(e)
		}
	}()
	ask <- call{Nr: unix.SYS_GETPID}
	<-answer
	runtime.LockOSThread()
	if role != "no-nnp" {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	if role == "no-nnp" {
		err := dropAndLoad(prog)
		fmt.Println(err)
		return nil
	}
	if err := Load(prog); err != nil {
		return err
	}
	switch role {
	case "calls":
		var got []int
		for _, c := range calls() {
			_, _, e := unix.RawSyscall(c.Nr, c.Args[0], c.Args[1], c.Args[2])
			ask <- c
			if other := <-answer; other != int(e) {
				return fmt.Errorf("call %d: this thread got %d, an older one %d", c.Nr, e, other)
			}
			got = append(got, int(e))
		}
		return json.NewEncoder(os.Stdout).Encode(got)
	case "kill":
		signal.Ignore(unix.SIGSYS)
		unix.RawSyscall(unix.SYS_REBOOT, 0, 0, 0)
	case "x32":
		unix.RawSyscall(0x40000000|unix.SYS_GETPID, 0, 0, 0)
	}
	return nil
}

// dropAndLoad tries the filter as an ordinary user without no_new_privs.
func dropAndLoad(prog []unix.SockFilter) error {
	runtime.LockOSThread()
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
		return e
	}
	return Load(prog)
}

func run(t *testing.T, role string) (string, *os.ProcessState) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{childEnv + "=" + role}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	t.Logf("%s: %v %s", role, cmd.ProcessState, stderr.String())
	return string(out), cmd.ProcessState
}

func TestLoadedFilter(t *testing.T) {
	out, state := run(t, "calls")
	if !state.Success() {
		t.Fatal(state)
	}
	var got, want []int
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	for _, c := range calls() {
		want = append(want, c.Want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("error numbers: got %v, want %v", got, want)
	}
}

func TestLoadedFilterKills(t *testing.T) {
	for _, role := range []string{"kill", "x32"} {
		_, state := run(t, role)
		if ws := state.Sys().(interface{ Signal() unix.Signal }); ws.Signal() != unix.SIGSYS {
			t.Errorf("%s: %v, want a death by SIGSYS", role, state)
		}
	}
}

func TestLoadNeedsNoNewPrivs(t *testing.T) {
	if out, _ := run(t, "no-nnp"); !strings.Contains(out, unix.EACCES.Error()) {
		t.Errorf("got %q, want EACCES", out)
	}
}
