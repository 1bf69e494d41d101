package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attempts by id.
var attempts = map[string]func() string{}

// register adds attempts; an id that is there already is a mistake in a table.
func register(more map[string]func() string) {
	for id, f := range more {
		if attempts[id] != nil {
			panic("twice: " + id)
		}
		attempts[id] = f
	}
}

// modes are what the probe can do besides attacking, by its first argument.
var modes = map[string]func(args []string) error{}

func main() {
	register(privileges())
	register(calls())
	register(sockets())
	register(files())
	register(resources())
	err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	// Some attempts would end a machine that does not stop them.
	if strings.Trim(statusField("/proc/self/status", "CapEff"), "0") != "" || statusField("/proc/self/status", "Seccomp") != "2" {
		return errors.New("this is no jail: a capability, or no seccomp filter")
	}
	if len(args) == 0 {
		return attack()
	}
	if f := modes[args[0]]; f != nil {
		return f(args[1:])
	}
	f := attempts[args[0]]
	if f == nil {
		return errors.New("unknown attempt " + args[0])
	}
	// What leaves through standard output here is the answer.
	_, err := fmt.Print(f())
	return err
}

// line is one line of output.
type line struct {
	ID  string `json:"id"`
	Got string `json:"got"`
}

func attack() error {
	out := json.NewEncoder(os.Stdout)
	for _, l := range atStart() {
		if err := out.Encode(l); err != nil {
			return err
		}
	}
	ids := make([]string, 0, len(attempts))
	for id := range attempts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if err := out.Encode(line{ID: id, Got: inOwnProcess(id)}); err != nil {
			return err
		}
	}
	return nil
}

// attemptLimit ends an attempt that hangs.
const attemptLimit = 20 * time.Second

func inOwnProcess(id string) string {
	ctx, cancel := context.WithTimeout(context.Background(), attemptLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", id)
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "timeout"
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return unix.SignalName(ws.Signal())
		}
		return "failed: " + strings.TrimSpace(string(exit.Stderr))
	}
	if err != nil {
		return "cannot try: " + text(err)
	}
	return string(out)
}

// text is an error as an errno's name, where it has one.
func text(err error) string {
	if err == nil {
		return "ok"
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// raw is a system call as an attempt; a second process that it makes ends.
func raw(nr uintptr, args ...uintptr) func() string {
	return func() string { return text(call(nr, args...)) }
}

func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	forks := nr == unix.SYS_CLONE || nr == unix.SYS_CLONE3 || nr == unix.SYS_FORK || nr == unix.SYS_VFORK
	if forks && errno == 0 && r == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// opens is opening a path as an attempt.
func opens(path string, flags int) func() string {
	return func() string {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
		if err != nil {
			return text(err)
		}
		unix.Close(fd)
		return "ok"
	}
}
