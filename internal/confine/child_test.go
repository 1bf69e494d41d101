package confine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What is confined stays so, so every test of it is a process of its own: the
// test binary, started again with a role and its input in the environment.
const (
	roleEnv  = "CONFINE_TEST_ROLE"
	inputEnv = "CONFINE_TEST_INPUT"
	testUID  = 0x37000000
)

// outcomes of what a child tried: "" is success, else an error's text.
type outcomes map[string]string

// roles are what a child can be.
var roles = map[string]func(input) (any, error){}

// input of a child.
type input struct {
	Paths  []string
	Addr   map[string]string // "tcp4", "tcp6", "udp", "https", "unix"
	Victim int
}

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	var in input
	err := json.Unmarshal([]byte(os.Getenv(inputEnv)), &in)
	var out any
	if err == nil {
		out, err = roles[role](in)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child prepares the test binary in a role.
func child(ctx context.Context, role string, in input, files ...*os.File) *exec.Cmd {
	raw, err := json.Marshal(in)
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	// The race detector would sleep for a second at each child's end.
	cmd.Env = []string{roleEnv + "=" + role, inputEnv + "=" + string(raw), "GORACE=atexit_sleep_ms=0"}
	cmd.ExtraFiles = files
	return cmd
}

// run starts a child unprivileged and decodes what it prints.
func run[T any](t *testing.T, role string, in input, files ...*os.File) T {
	t.Helper()
	cmd := child(t.Context(), role, in, files...)
	return finish[T](t, cmd, Start(withOutput(cmd), testUID, testUID))
}

// withOutput gives cmd buffers, which Start leaves alone.
func withOutput(cmd *exec.Cmd) *exec.Cmd {
	cmd.Stdout, cmd.Stderr = &strings.Builder{}, &strings.Builder{}
	return cmd
}

func finish[T any](t *testing.T, cmd *exec.Cmd, err error) T {
	t.Helper()
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("child: %v\n%v", err, cmd.Stderr)
	}
	var out T
	if err := json.Unmarshal([]byte(cmd.Stdout.(*strings.Builder).String()), &out); err != nil {
		t.Fatalf("child printed %q: %v", cmd.Stdout, err)
	}
	return out
}

// thread is an OS thread that lives through Apply.
type thread struct {
	ask    chan func() error
	answer chan error
}

func newThread() *thread {
	t := &thread{ask: make(chan func() error), answer: make(chan error)}
	go func() {
		runtime.LockOSThread()
		for f := range t.ask {
			t.answer <- f()
		}
	}()
	t.do(func() error { return nil })
	return t
}

func (t *thread) do(f func() error) error {
	t.ask <- f
	return <-t.answer
}

// try runs each attempt on the calling thread, on one that is older than the
// confinement and on a new one. They must agree.
func try(old *thread, attempts map[string]func() error) outcomes {
	out := outcomes{}
	for name, f := range attempts {
		here, there, fresh := text(f()), text(old.do(f)), text(newThread().do(f))
		if here != there || here != fresh {
			here = fmt.Sprintf("threads disagree: %q, older %q, newer %q", here, there, fresh)
		}
		out[name] = here
	}
	return out
}

func text(err error) string {
	if err == nil {
		return ""
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// raw is a system call as an attempt. A call that unexpectedly forks ends the
// second process.
func raw(nr uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		r, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if forks := nr == unix.SYS_CLONE || nr == unix.SYS_FORK || nr == unix.SYS_VFORK; forks && errno == 0 && r == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		if errno != 0 {
			return errno
		}
		return nil
	}
}

func compare(t *testing.T, got, want outcomes) {
	t.Helper()
	for name, w := range want {
		g, tried := got[name]
		if !tried {
			t.Errorf("%s: not tried", name)
		} else if g != w {
			t.Errorf("%s: got %q, want %q", name, g, w)
		}
	}
	for name := range got {
		if _, known := want[name]; !known {
			t.Errorf("%s: tried, and nothing is expected of it", name)
		}
	}
}
