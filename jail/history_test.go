package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
)

// all reads what a history has from a number on.
func all(t *testing.T, h *history, after uint64) (events []Event, err error) {
	t.Helper()
	h.events(context.Background(), after, false, func(e Event, rerr error) bool {
		if err = rerr; err == nil {
			events = append(events, e)
		}
		return true
	})
	return events, err
}

// TestHistoryKeepsTheNewest: of a short one, in as many files as any other.
func TestHistoryKeepsTheNewest(t *testing.T) {
	h := newHistory(t.TempDir(), 1<<20)
	before := openFiles(t)
	line := make([]byte, 1000)
	for range 20_000 {
		if !h.append(EventStdout, line, nil) {
			t.Fatal("not kept")
		}
	}
	h.append(EventExit, nil, &Exit{})
	if n := openFiles(t) - before; n > maxSegments+1 {
		t.Errorf("%d files are open", n)
	}
	first := h.firstKept()
	if _, err := all(t, h, first-2); !errors.Is(err, ErrGone) {
		t.Errorf("what is lost: %v", err)
	}
	events, err := all(t, h, first-1)
	if err != nil || len(events) < 700 || len(events) > 1400 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	for i, e := range events {
		if e.Seq != first+uint64(i) {
			t.Fatalf("event %d after %d", e.Seq, first+uint64(i)-1)
		}
	}
	if last := events[len(events)-1]; last.Kind != EventExit || last.Seq != 20_001 {
		t.Errorf("%+v", last)
	}
	h.close()
	if n := openFiles(t) - before; n != 0 {
		t.Errorf("%d files are left", n)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestHistoryOnAFullDisk: output is lost and said to be; the exit is not.
func TestHistoryOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	h := newHistory(dir, 0)
	defer h.close()
	kept := 0
	for range 4000 {
		if h.append(EventStdout, make([]byte, 1000), nil) {
			kept++
		}
	}
	if kept < 900 || kept > 1100 {
		t.Errorf("%d of 4000 events on 1 MiB", kept)
	}
	h.append(EventExit, nil, &Exit{Code: 3})
	events, err := all(t, h, 0)
	if err != nil || len(events) != kept+1 {
		t.Fatalf("%d events of %d, %v", len(events), kept+1, err)
	}
	if last := events[kept]; last.Kind != EventExit || last.Exit == nil || last.Exit.Code != 3 {
		t.Errorf("%+v", last)
	}
}

// TestWaitLogOfAFlood finds a line although what came before it is gone already.
func TestWaitLogOfAFlood(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", "head -c 9000000 /dev/zero | tr '\\0' '\\n'; echo found; exec sleep 1000"}, Keep: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitLog(t.Context(), regexp.MustCompile("^found$")); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestManyExecs: neither those at once nor those one after the other leave
// anything, here or in sandbox-init, and each has its own output in its order.
func TestManyExecs(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	one := func(i int) {
		o := sh(t, j, fmt.Sprintf("seq %d %d; echo e%d >&2; exit %d", i*10, i*10+9, i, i%200))
		want := ""
		for n := range 10 {
			want += fmt.Sprintln(i*10 + n)
		}
		if o.exit.Code != i%200 || o.stdout != want || o.stderr != fmt.Sprintf("e%d\n", i) {
			t.Errorf("command %d: %+v", i, o)
		}
	}
	// As many as are remembered, so that from here on each makes another go.
	done := make(chan bool)
	for i := range 200 {
		go func() { one(i); done <- true }()
	}
	for range 200 {
		<-done
	}
	for i := range maxEnded - 200 {
		one(i)
	}
	before, inside := count(t, m), initState(t, j)
	for i := range 150 {
		one(i)
	}
	settled(t, m, before)
	after := initState(t, j)
	if after.files > inside.files || after.threads > inside.threads+2 || after.memory > inside.memory+1<<20 {
		t.Errorf("sandbox-init was %+v and is %+v", inside, after)
	}
	if n := len(j.Processes()); n != maxEnded {
		t.Errorf("%d commands are remembered", n)
	}
	groups, err := os.ReadDir(string(j.cgroup))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if g.IsDir() && g.Name() != "init" {
			t.Errorf("group %s is left", g.Name())
		}
	}
}

type initCounts struct{ files, threads, memory int }

// initState looks at sandbox-init.
func initState(t testing.TB, j *Jail) (c initCounts) {
	t.Helper()
	for what, to := range map[string]*int{"fd": &c.files, "task": &c.threads} {
		names, err := j.m.procList(fmt.Sprintf("%d/%s", j.pid, what))
		if err != nil {
			t.Fatal(err)
		}
		*to = len(names)
	}
	b, err := j.m.procFile(fmt.Sprintf("%d/statm", j.pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	c.memory = resident * os.Getpagesize()
	return c
}
