package jail

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRefusedCallsAreRemembered: for the command that made them, and refused as
// if nobody had looked.
func TestRefusedCallsAreRemembered(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	other, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	o := sh(t, j, `mount -t tmpfs none /tmp; unshare -U true; (setsid unshare -n true; unshare -n true); mknod d c 1 3; mkfifo f && echo fifo`)
	if o.stdout != "fifo\n" || strings.Count(o.stderr, "Operation not permitted") != 4 || !strings.Contains(o.stderr, "superuser") {
		t.Errorf("%q, %q", o.stdout, o.stderr)
	}
	got := map[string]int64{}
	for _, r := range o.exit.Refused {
		got[r.Name] = r.Count
		if r.First.Before(begun) || r.First.After(time.Now()) {
			t.Errorf("%+v", r)
		}
	}
	if got["mount"] < 1 || got["unshare"] != 3 || got["mknod"]+got["mknodat"] != 1 {
		t.Errorf("%v", got)
	}
	if o := sh(t, j, "true"); len(o.exit.Refused) != 0 {
		t.Errorf("of nothing: %+v", o.exit.Refused)
	}
	if err := other.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit, err := other.Wait(t.Context()); err != nil || len(exit.Refused) != 0 {
		t.Errorf("the bystander: %+v, %v", exit, err)
	}
}

// TestRefusedCallsAreBounded: who makes them without end waits, and nobody else
// does; neither its memory here nor its end suffers.
func TestRefusedCallsAreBounded(t *testing.T) {
	m := testManager(t)
	j, neighbour := testJail(t, m, "alice"), testJail(t, m, "bob")
	const flood = `import ctypes, threading
libc = ctypes.CDLL(None)
def many():
    for i in range(1 << 30):
        libc.unshare(0x10000000)
        libc.umount2(b"/proc", 0)
        libc.listen(0, 1)
for i in range(8): threading.Thread(target=many).start()
print("floods", flush=True)`
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"python3", "-c", flood}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitLog(t.Context(), regexp.MustCompile("^floods$")); err != nil {
		t.Fatal(err)
	}
	refusals := func() (n int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, r := range p.refused {
			n += r.Count
		}
		return n
	}
	// Its burst is used up, and more.
	for end := time.Now().Add(30 * time.Second); refusals() < noticeBurst; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d refusals", refusals())
		}
	}
	at, since := refusals(), time.Now()
	for range 20 {
		if o := sh(t, neighbour, "mount -t tmpfs none /tmp"); len(o.exit.Refused) != 1 {
			t.Fatalf("%+v", o.exit)
		}
	}
	if n, most := refusals()-at, int64(time.Since(since).Seconds()*noticeRate)+2; n > most {
		t.Errorf("%d calls answered where %d are the limit", n, most)
	}
	// Frozen, thawed and killed while its threads wait.
	for _, do := range []func(context.Context) error{j.Freeze, j.Thaw, p.Kill} {
		if err := do(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exit, err := p.Wait(t.Context())
	if err != nil || len(exit.Refused) != 2 {
		t.Errorf("%+v, %v", exit, err)
	}
	if err := j.Destroy(t.Context(), CauseDestroyed); err != nil {
		t.Error(err)
	}
}

// TestWaitPortHearsOfListening: whatever thread, family or descriptor; and no
// sooner.
func TestWaitPortHearsOfListening(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	const listener = `import socket, sys, threading
family = socket.AF_INET6 if sys.argv[1] == "::1" else socket.AF_INET
sys.stdin.readline()
s = socket.socket(family, socket.SOCK_STREAM)
s.bind((sys.argv[1], int(sys.argv[2])))
print("bound", flush=True)
sys.stdin.readline()
t = threading.Thread(target=s.listen); t.start(); t.join()
s.listen(64)
sys.stdin.readline()`
	var wg sync.WaitGroup
	for i, addr := range []string{"127.0.0.1", "0.0.0.0", "::1"} {
		port := uint16(4000 + i)
		p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"python3", "-c", listener, addr, fmt.Sprint(port)}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan error, 1)
		wg.Go(func() { heard <- j.WaitPort(t.Context(), port) })
		step := func() { fmt.Fprintln(p.Stdin()) }
		step()
		if err := p.WaitLog(t.Context(), regexp.MustCompile("^bound$")); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-heard:
			t.Fatalf("%s: bound is not listening: %v", addr, err)
		default:
		}
		step()
		if err := <-heard; err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		// Who comes later hears it, too.
		if err := j.WaitPort(t.Context(), port); err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

// TestListenerIsChecked: only the listener of a filter is one.
func TestListenerIsChecked(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := checkListener(f); err == nil {
		t.Error("/dev/null passes")
	}
}

func TestBucket(t *testing.T) {
	b := newBucket(1e6, 3)
	for range 10 {
		if !b.take(nil) {
			t.Fatal("no token")
		}
	}
	stop := make(chan struct{})
	close(stop)
	slow := newBucket(1e-9, 1)
	if !slow.take(stop) || slow.take(stop) {
		t.Error("one token is there, and then none until it is stopped")
	}
}

// TestWatchedCallsAreRefusedSomewhere: a name that is watched is let through by
// the commands' own filter, so sandbox-init's must hold it.
func TestWatchedCallsAreRefusedSomewhere(t *testing.T) {
	init := InitFilter()
	for _, name := range append(watched(), watchedFallbacks()...) {
		if !slices.Contains(init.Notify, name) || slices.Contains(init.Allow, name) || init.Errno[name] != 0 {
			t.Errorf("%s", name)
		}
	}
	calls := newNoticeTable()
	if calls.listen != unix.SYS_LISTEN || calls.names[calls.listen] != "" || calls.names[unix.SYS_MOUNT] != "mount" {
		t.Errorf("%+v", calls)
	}
}
