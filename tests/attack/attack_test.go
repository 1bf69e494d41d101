package attack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
	"sandboxd/internal/seccomp/bpf"
	"sandboxd/jail"
)

// TestAttempts runs every attempt in one jail and compares all outcomes.
func TestAttempts(t *testing.T) {
	j := newJail(t, "attacked")
	got := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(output(t, j))); ; {
		var l struct{ ID, Got string }
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if _, twice := got[l.ID]; twice {
			t.Errorf("%s: reported twice", l.ID)
		}
		got[l.ID] = l.Got
	}
	want := expected()
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if g, tried := got[id]; !tried {
			t.Errorf("%s: not tried", id)
		} else if !matches(g, want[id]) {
			t.Errorf("%s:\n got %q\nwant %q", id, g, want[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(got)) {
		if _, known := want[id]; !known {
			t.Errorf("%s: got %q, and nothing is expected of it", id, got[id])
		}
	}
	if info := j.Info(); info.State != jail.StateRunning {
		t.Errorf("after the attacks the jail is %s (%s)", info.State, info.Cause)
	}
	// The jail still serves, in a new process.
	if out := output(t, j, "B04 system call 999"); string(out) != "ENOSYS" {
		t.Errorf("after the attacks: %q", out)
	}
}

// Kernels since 6.14 pass these two by every seccomp filter: they are how a probed
// program returns to the kernel. From anywhere else they end the caller (SIGILL).
const (
	uretprobe = 335
	uprobe    = 336
)

// TestSweep makes every system call number that the list refuses, in a jail, and
// wants the list's answer: the filter that is loaded is the one that was
// compiled. (That the compiled one says what the list says is internal/seccomp's
// own test.)
func TestSweep(t *testing.T) {
	prog, err := seccomp.Compile(jail.ExecFilter())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for nr := range 600 {
		if nr == uretprobe || nr == uprobe {
			continue
		}
		answer, err := bpf.Eval(prog, bpf.Data{Nr: uint32(nr), Arch: seccomp.Arch()})
		if err != nil {
			t.Fatal(err)
		}
		if answer&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO {
			want[strconv.Itoa(nr)] = unix.ErrnoName(unix.Errno(answer & unix.SECCOMP_RET_DATA))
		}
	}
	if len(want) < 200 {
		t.Fatalf("the list refuses only %d numbers below 600", len(want))
	}
	numbers := slices.Sorted(maps.Keys(want))
	got := decode[map[string]string](t, newJail(t, "swept"), "sweep", strings.Join(numbers, ","))
	for _, nr := range numbers {
		if got[nr] != want[nr] {
			t.Errorf("system call %s: got %q, want %q", nr, got[nr], want[nr])
		}
	}
}

// TestSockets tries every family with every type and protocol (B09).
func TestSockets(t *testing.T) {
	got := decode[map[string]string](t, newJail(t, "sockets"), "sockets")
	want := expectedSockets()
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if w, known := want[key]; !known {
			t.Errorf("family, type, protocol %s: got %q, want EAFNOSUPPORT", key, got[key])
		} else if got[key] != w {
			t.Errorf("family, type, protocol %s: got %q, want %q", key, got[key], w)
		}
	}
	for key := range want {
		if _, tried := got[key]; !tried {
			t.Errorf("family, type, protocol %s: got EAFNOSUPPORT, want %q", key, want[key])
		}
	}
}

// A working directory that leads out of the jail, or to nothing, is refused and
// starts nothing (A02).
func TestWorkingDirectories(t *testing.T) {
	j := newJail(t, "elsewhere")
	output(t, j, "link", "/proc/self/cwd", "/workspace/to-cwd")
	output(t, j, "link", "/proc/1/root", "/workspace/to-root")
	cwds := []string{"/proc/1/root", "/proc/self/root/usr/..", "/workspace/to-cwd", "/workspace/to-root", "/no/such/folder", "/etc/passwd", "relative"}
	for fd := 3; fd < 64; fd++ {
		cwds = append(cwds, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	for _, cwd := range cwds {
		p, err := j.Exec(t.Context(), jail.ExecSpec{Argv: []string{"/bin/pwd"}, Cwd: cwd})
		if err == nil {
			exit, err := p.Wait(t.Context())
			t.Errorf("cwd %s: a command was started, %+v, %v", cwd, exit, err)
			continue
		}
		var spec *jail.SpecError
		var start *jail.StartError
		if !errors.As(err, &spec) && (!errors.As(err, &start) || start.Step != "cwd") {
			t.Errorf("cwd %s: got %v, want a *SpecError or a *StartError at cwd", cwd, err)
		}
	}
	if got := j.Info().State; got != jail.StateRunning {
		t.Errorf("the jail is %s", got)
	}
}

// Output beyond the limit is dropped and said to be; the command runs on (D09).
func TestFlood(t *testing.T) {
	j := newJail(t, "flooding")
	const limit = 1 << 20
	p, err := j.Exec(t.Context(), jail.ExecSpec{ID: "flood", Argv: []string{"/workspace/probe", "flood"}, Output: limit})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Code != 0 || !exit.Truncated {
		t.Errorf("exit %+v, %v; want code 0, truncated", exit, err)
	}
	kept := 0
	for e, err := range p.Events(t.Context(), 0, false) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == jail.EventStdout {
			kept += len(e.Data)
		}
	}
	if kept > limit || kept < limit/2 {
		t.Errorf("%d bytes are kept, the limit is %d", kept, limit)
	}
}
