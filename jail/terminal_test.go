package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// onTerminal starts a command with a terminal.
func onTerminal(t *testing.T, j *Jail, script string) *Process {
	t.Helper()
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"bash", "-c", script}, Terminal: &Size{Cols: 81, Rows: 25}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// shows follows the terminal from an event on until its output holds text, and
// returns the number of the last event.
func shows(t *testing.T, p *Process, after uint64, text string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out strings.Builder
	for ev, err := range p.Events(ctx, after, true) {
		if err != nil {
			t.Fatalf("waiting for %q: %v after %q", text, err, out.String())
		}
		after = ev.Seq
		if ev.Kind == EventStderr {
			t.Fatalf("a terminal has one stream: %q", ev.Data)
		}
		out.Write(ev.Data)
		if strings.Contains(out.String(), text) {
			return after
		}
	}
	t.Fatalf("it ended without %q: %q", text, out.String())
	return 0
}

func typed(t *testing.T, p *Process, text string) {
	t.Helper()
	if _, err := p.Terminal().Type(t.Context(), []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func TestTerminal(t *testing.T) {
	j := testJail(t, testManager(t), "alice")
	p := onTerminal(t, j, `tty; stty size; stat -c '%U %G %a' $(tty); echo err >&2; test -t 0 -a -t 1 -a -t 2 && echo three
		echo TERM=$TERM; echo controlling > /dev/tty; trap 'stty size; echo resized' WINCH; echo ready
		while read -r line; do echo "got $line"; done; echo end of input; exit 7`)
	for _, want := range []string{"/dev/pts/0\r\n", "25 81", "user tty 620", "err\r\n", "three", "TERM=xterm-256color", "controlling"} {
		shows(t, p, 0, want)
	}
	last := shows(t, p, 0, "ready\r\n")
	if err := p.Terminal().Resize(Size{Cols: 132, Rows: 50}); err != nil {
		t.Fatal(err)
	}
	// The trap runs when the read that it interrupts is done.
	typed(t, p, "one\r")
	last = shows(t, p, last, "50 132\r\nresized")
	shows(t, p, 0, "got one")
	typed(t, p, "twoo\x7f\r")
	shows(t, p, last, "got two\r\n")
	if err := p.Terminal().TypeEnd(t.Context()); err != nil {
		t.Fatal(err)
	}
	shows(t, p, last, "end of input")
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Code != 7 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if err := p.Terminal().Resize(Size{Cols: 1, Rows: 1}); !errors.Is(err, ErrGone) {
		t.Errorf("resize after the end: %v", err)
	}
	if _, err := p.Terminal().Type(t.Context(), []byte("x")); !errors.Is(err, ErrGone) {
		t.Errorf("input after the end: %v", err)
	}
	if p.Stdin() != nil {
		t.Error("a terminal's standard input is no pipe")
	}
}

// Keys are signals, to what is in the foreground alone.
func TestTerminalKeys(t *testing.T) {
	j := testJail(t, testManager(t), "alice")
	for key, want := range map[string]string{"\x03": "SIGINT", "\x1c": "SIGQUIT"} {
		p := onTerminal(t, j, "exec cat")
		// Its echo, and then its own: it runs.
		typed(t, p, "mark\r")
		shows(t, p, 0, "mark\r\nmark\r\n")
		typed(t, p, key)
		if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != want {
			t.Errorf("%q: %+v, %v", key, exit, err)
		}
	}
	p := onTerminal(t, j, `PS1='$ ' PS0='<runs>' exec bash --norc -i`)
	last := shows(t, p, 0, "$ ")
	typed(t, p, "cat\r")
	last = shows(t, p, last, "<runs>") // the terminal is a plain one again
	typed(t, p, "mark\r")
	last = shows(t, p, last, "mark\r\nmark\r\n")
	typed(t, p, "\x1a")
	last = shows(t, p, last, "Stopped")
	typed(t, p, "fg\r")
	last = shows(t, p, last, "<runs>cat\r\n")
	typed(t, p, "again\r")
	last = shows(t, p, last, "again\r\nagain\r\n")
	typed(t, p, "\x03")
	shows(t, p, last, "$ ")
	typed(t, p, "exit 5\r")
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 5 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// Every byte of the output arrives, in order, though nobody reads meanwhile.
func TestTerminalOutput(t *testing.T) {
	j := testJail(t, testManager(t), "alice")
	p := onTerminal(t, j, "stty -opost; seq 200000")
	o := collect(t, t.Context(), p)
	lines := strings.Split(strings.TrimSuffix(o.stdout, "\n"), "\n")
	if len(lines) != 200000 || o.exit.Code != 0 || o.exit.Truncated {
		t.Fatalf("%d lines, %+v", len(lines), o.exit)
	}
	for i, line := range lines {
		if line != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
	for range 100 {
		if o := collect(t, t.Context(), onTerminal(t, j, "echo out; exit 3")); o.stdout != "out\r\n" || o.exit.Code != 3 {
			t.Fatalf("%+v", o)
		}
	}
}

// A leader that closes the terminal before it ends, ends as it likes.
func TestTerminalClosedByItsLeader(t *testing.T) {
	j := testJail(t, testManager(t), "alice")
	p := onTerminal(t, j, "echo out; exec <&- >&- 2>&-; sleep 0.2; exit 9")
	if o := collect(t, t.Context(), p); o.stdout != "out\r\n" || o.exit.Code != 9 {
		t.Fatalf("%+v", o)
	}
}

// A process that is left behind on the terminal neither keeps it nor is waited
// for: it is hung up.
func TestTerminalHangsUp(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "true")
	before := count(t, m)
	p := onTerminal(t, j, `(trap "" HUP; while echo x 2>/dev/null; do sleep 0.01; done; echo hung up > /workspace/result) & sleep 0.1; echo leader ends`)
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if err := p.group.await(t.Context(), "populated", 0); err != nil {
		t.Fatal(err)
	}
	if o := sh(t, j, "cat /workspace/result"); o.stdout != "hung up\n" {
		t.Errorf("%+v", o)
	}
	// What the terminal's end means by default.
	p = onTerminal(t, j, "sleep 1000 & sleep 1000 & echo bye")
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled(t, m, before)
}

// Input that nobody takes holds up who types it, no longer than he wants.
func TestTerminalInputIsBounded(t *testing.T) {
	j := testJail(t, testManager(t), "alice")
	p := onTerminal(t, j, "stty raw -echo; echo ready; exec sleep 1000")
	shows(t, p, 0, "ready")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	n, err := p.Terminal().Type(ctx, make([]byte, 4<<20))
	if !errors.Is(err, context.DeadlineExceeded) || n > 1<<20 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if err := p.Terminal().Resize(Size{Cols: 10, Rows: 10}); err != nil {
		t.Error(err)
	}
	blocked := make(chan error)
	go func() {
		_, err := p.Terminal().Type(t.Context(), make([]byte, 4<<20))
		blocked <- err
	}()
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-blocked; !errors.Is(err, ErrGone) {
		t.Errorf("typing when the command ends: %v", err)
	}
}

func TestTerminalsAreBounded(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "true")
	before := count(t, m)
	hog := onTerminal(t, j, `for i in $(seq 100); do exec {fd}<>/dev/ptmx || break; done 2>/dev/null; echo full; exec sleep 1000`)
	shows(t, hog, 0, "full")
	_, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"true"}, Terminal: &Size{Cols: 1, Rows: 1}})
	if !errors.Is(err, ErrTerminals) {
		t.Errorf("one terminal too many: %v", err)
	}
	neighbour := testJail(t, m, "bob")
	if o := collect(t, t.Context(), onTerminal(t, neighbour, "echo fine")); o.stdout != "fine\r\n" {
		t.Errorf("the neighbour: %+v", o)
	}
	if err := neighbour.Destroy(t.Context(), CauseDestroyed); err != nil {
		t.Fatal(err)
	}
	if err := hog.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := hog.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled(t, m, before)
	for field, spec := range map[string]ExecSpec{
		"size":        {Argv: []string{"true"}, Terminal: &Size{}},
		"descriptors": {Argv: []string{"true"}, Terminal: &Size{Cols: 1, Rows: 1}, Files: [3]*os.File{m.null}},
	} {
		var bad *SpecError
		if _, err := j.Exec(t.Context(), spec); !errors.As(err, &bad) || bad.Field != "tty" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A command with a terminal is confined like any other.
func TestTerminalCommandIsConfined(t *testing.T) {
	j := testJail(t, testManager(t), "alice")
	o := collect(t, t.Context(), onTerminal(t, j, `stty -opost; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp|Uid):' /proc/self/status; ls /proc/self/fd | tr '\n' ' '`))
	for _, want := range []string{
		"Uid:\t1000\t1000\t1000\t1000\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n", "0 1 2 3 ",
	} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("no %q in %q", want, o.stdout)
		}
	}
}
