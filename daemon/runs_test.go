package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandboxd/daemon/api"
)

func TestEventsAreFollowedWithoutGaps(t *testing.T) {
	var l eventLog
	l.append(api.Event{Type: api.EventStarted})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var next uint64 = 1
			for e, err := range l.all(context.Background(), 0, true) {
				if err != nil || e.Seq != next {
					t.Errorf("event %d, %v; want %d", e.Seq, err, next)
					return
				}
				next++
			}
			if next != 1003 {
				t.Errorf("the stream ended before event %d", next)
			}
		})
	}
	for range 1000 {
		l.append(api.Event{Type: api.EventLog, Log: &api.LogEntry{}})
	}
	l.append(api.Event{Type: api.EventResult})
	wg.Wait()
	l.append(api.Event{Type: api.EventLog})
	n := 0
	for e := range l.all(context.Background(), 1000, false) {
		if e.Seq != uint64(1001+n) || e.Time.IsZero() {
			t.Errorf("after 1000 comes %d at %v", e.Seq, e.Time)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d events after 1000, want 2: none comes after the result", n)
	}
}

func TestLogIsBoundedWhateverIsWritten(t *testing.T) {
	var l eventLog
	for range 200_000 {
		l.append(api.Event{Type: api.EventStdout, Data: "x"})
		l.append(api.Event{Type: api.EventLog, Log: &api.LogEntry{}})
	}
	if l.size() > keepLog+eventCost {
		t.Errorf("it takes %d bytes", l.size())
	}
	for _, err := range l.all(context.Background(), 0, false) {
		if !errors.Is(err, errHistory) {
			t.Errorf("the lost beginning: %v", err)
		}
	}
	n := uint64(0)
	for e, err := range l.all(context.Background(), l.first, false) {
		if n++; err != nil || e.Seq != l.first+n {
			t.Fatalf("event %d, %v after %d", e.Seq, err, l.first)
		}
	}
	if n == 0 || l.first+n != 400_000 {
		t.Errorf("%d events after %d", n, l.first)
	}
}

func TestUnseenOutputIsJoined(t *testing.T) {
	var l eventLog
	write := func(kind, text string) {
		e := api.Event{Type: kind}
		e.SetData([]byte(text))
		l.append(e)
	}
	write(api.EventStdout, "a")
	write(api.EventStdout, "b")
	write(api.EventStderr, "c")
	write(api.EventStderr, "\xff")
	var got []string
	for e := range l.all(context.Background(), 0, false) {
		got = append(got, e.Type+" "+e.Data)
		if len(got) == 3 {
			// What was handed out does not change any more.
			write(api.EventStderr, "d")
		}
	}
	if want := []string{"stdout ab", "stderr c", "stderr /w==", "stderr d"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFollowingEndsWithItsContext(t *testing.T) {
	var l eventLog
	l.append(api.Event{Type: api.EventStarted})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := 0
	for range l.all(ctx, 0, true) {
		n++
		cancel()
	}
	if n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestDroppedHistoryIsGone(t *testing.T) {
	var l eventLog
	l.append(api.Event{Type: api.EventResult})
	l.drop()
	for _, err := range l.all(context.Background(), 0, true) {
		var e *api.Error
		if !errors.As(err, &e) || e.Status() != 410 {
			t.Fatalf("got %v, want 410", err)
		}
		return
	}
	t.Fatal("a dropped history gave nothing at all")
}

func testRun(id string) *run {
	return &run{id: id, tenant: "t", done: make(chan struct{}), cancel: func(error) {}}
}

func TestRegistryRunsAnIDOnce(t *testing.T) {
	g := newRegistry()
	a := testRun("a")
	if g.add(a) != nil {
		t.Fatal("a new id was taken")
	}
	if old := g.add(testRun("a")); old != a {
		t.Fatal("the same id was registered twice")
	}
	g.forget(a)
	if g.add(testRun("a")) != nil {
		t.Fatal("a forgotten id was still taken")
	}
}

// TestRunsOfOthersAreNotThere: neither their ids nor their tenants' names may be
// told by how a request for them is refused.
func TestRunsOfOthersAreNotThere(t *testing.T) {
	g := newRegistry()
	mine, theirs := testRun("a"), testRun("a")
	theirs.tenant = "u"
	if g.add(mine) != nil || g.add(theirs) != nil {
		t.Fatal("one tenant's id was taken by another's")
	}
	only := func(name string) func(string) bool { return func(tenant string) bool { return tenant == name } }
	for name, want := range map[string]*run{"t": mine, "u": theirs} {
		if r, err := g.get("a", only(name)); err != nil || r != want {
			t.Errorf("%s sees %v, %v", name, r, err)
		}
	}
	_, hidden := g.get("a", only("v"))
	_, none := g.get("b", only("v"))
	var h, n *api.Error
	if !errors.As(hidden, &h) || !errors.As(none, &n) || strings.ReplaceAll(h.Error(), `"a"`, `"b"`) != n.Error() || h.Code != api.CodeNotFound {
		t.Errorf("hidden: %v; not there: %v", hidden, none)
	}
	if _, err := g.get("a", func(string) bool { return true }); !errors.As(err, &h) || h.Code != api.CodeConflict {
		t.Errorf("whose run is meant is not known, and: %v", err)
	}
	g.forget(mine)
	if r, err := g.get("a", func(string) bool { return true }); err != nil || r != theirs {
		t.Errorf("after the other is gone: %v, %v", r, err)
	}
	g.forget(theirs)
	if len(g.byID)+len(g.runs)+len(g.places)+g.order.Len() != 0 {
		t.Error("the registry remembers what it has forgotten")
	}
}

func TestRegistryIsBounded(t *testing.T) {
	g := newRegistry()
	long := testRun("running")
	g.add(long)
	big := strings.Repeat("x", 64<<10)
	for i := range keepRuns + 100 {
		r := testRun(fmt.Sprint("r", i))
		g.add(r)
		r.events.append(api.Event{Type: api.EventStdout, Data: big})
		close(r.done)
		g.finished(r)
	}
	if n := len(g.runs); n > keepRuns {
		t.Errorf("%d runs are kept, more than %d", n, keepRuns)
	}
	if g.bytes > keepEvents {
		t.Errorf("%d bytes of events are kept", g.bytes)
	}
	if _, err := g.get("running", func(string) bool { return true }); err != nil {
		t.Errorf("a run under way was dropped: %v", err)
	}
	if _, err := g.get("r0", func(string) bool { return true }); err == nil {
		t.Error("the oldest run is still kept")
	}
	newest, err := g.get(fmt.Sprint("r", keepRuns+99), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range newest.events.all(context.Background(), 0, false) {
		if err != nil {
			t.Errorf("the newest run's events: %v", err)
		}
	}
	old, err := g.get(fmt.Sprint("r", 200), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range old.events.all(context.Background(), 0, false) {
		if !errors.Is(err, errHistory) {
			t.Errorf("an old run's events: %v, want 410", err)
		}
	}
	if active, total := g.counts(); active != 1 || total != keepRuns+101 {
		t.Errorf("counts are %d, %d", active, total)
	}
}

func TestIDs(t *testing.T) {
	for id, ok := range map[string]bool{"": true, "a": true, "A-1.b_c:d": true, strings.Repeat("x", 128): true,
		strings.Repeat("x", 129): false, "-a": false, "a/b": false, "a b": false, "é": false, "a\n": false, "..": false} {
		if err := checkID("run_id", id); (err == nil) != ok {
			t.Errorf("%q: %v", id, err)
		}
	}
	if a, b := newID("run-"), newID("run-"); a == b || checkID("x", a) != nil {
		t.Errorf("made ids are %q and %q", a, b)
	}
}

func TestTrimmedRunSaysSo(t *testing.T) {
	r := testRun("a")
	r.record = api.Run{RunID: "a", Result: []byte("1"), Stdout: "x", Status: api.StatusOK}
	if r.size() < 2 {
		t.Errorf("its size is %d", r.size())
	}
	r.trim()
	if rec := r.snapshot(); rec.Result != nil || rec.Stdout != "" || rec.Status != api.StatusOK {
		t.Errorf("after the trim: %+v", rec)
	}
	d := &Daemon{}
	err := d.joinRun(&request{}, testRun("a"), r)
	if e := toAPI(err); e.Code != api.CodeGone {
		t.Errorf("joining it gives %v", err)
	}
}
