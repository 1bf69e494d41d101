package jail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// watching starts a watch and returns what takes its next events.
func watching(t *testing.T, j *Jail, path string, recursive bool) (next func() WatchEvent, stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	events, err := j.Watch(ctx, path, recursive)
	if err != nil {
		t.Fatal(err)
	}
	ch, ended := make(chan WatchEvent, 1<<16), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(ch)
		for e, err := range events {
			if err != nil {
				if !errors.Is(err, context.Canceled) && !errors.Is(err, ErrGone) {
					t.Error(err)
				}
				return
			}
			ch <- e
		}
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	seq := uint64(0)
	return func() WatchEvent {
		e, ok := <-ch
		if ok {
			if seq++; e.Seq != seq {
				t.Errorf("event %d after %d", e.Seq, seq-1)
			}
		}
		return e
	}, stop
}

func says(e WatchEvent) string {
	s := e.Op + " " + e.Path
	if e.From != "" {
		s += " from " + e.From
	}
	if e.Dir {
		s += "/"
	}
	return s
}

func TestWatch(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "mkdir a")
	next, stop := watching(t, j, "/workspace", true)
	last := ""
	for _, step := range []struct {
		script string
		want   []string
	}{
		{"mkdir b; touch a/x", []string{"create /workspace/b/", "create /workspace/a/x", "modify /workspace/a/x"}},
		{"echo 1 > a/x", []string{"modify /workspace/a/x"}},
		{"mv a/x b/y", []string{"rename /workspace/b/y from /workspace/a/x"}},
		{"mv b c", []string{"rename /workspace/c from /workspace/b/"}},
		{"rm c/y", []string{"delete /workspace/c/y"}},
		{"ln -s / link; rm link", []string{"create /workspace/link", "delete /workspace/link"}},
		{"mv a /tmp/ 2>/dev/null; rm -rf a", []string{"delete /workspace/a/"}},
		{`touch 'new
line'; rm 'new
line'`, []string{"create /workspace/new\nline", "modify /workspace/new\nline", "delete /workspace/new\nline"}},
	} {
		sh(t, j, step.script)
		for _, want := range step.want {
			got := says(next())
			// To open, to cut and to write are one change or several, as the
			// kernel finds them in its queue.
			for got == last && got != want && strings.HasPrefix(got, "modify ") {
				got = says(next())
			}
			if last = got; got != want {
				t.Fatalf("%q: got %q, want %q", step.script, got, want)
			}
		}
	}
	// A deep new tree: some entries may be told twice, none is missed.
	sh(t, j, "mkdir -p d/e/f; touch d/e/f/g; touch end")
	seen := map[string]bool{}
	for !seen["create /workspace/end"] {
		seen[says(next())] = true
	}
	for _, want := range []string{"create /workspace/d/", "create /workspace/d/e/", "create /workspace/d/e/f/", "create /workspace/d/e/f/g"} {
		if !seen[want] {
			t.Errorf("never told: %s", want)
		}
	}
	sh(t, j, "echo more >> d/e/f/g")
	for says(next()) != "modify /workspace/d/e/f/g" {
	}
	// The API's own changes are told too.
	if _, err := j.WriteFile(t.Context(), "d/api", strings.NewReader("x"), 0, 10); err != nil {
		t.Fatal(err)
	}
	for e := next(); e.Path != "/workspace/d/api"; e = next() {
	}
	stop()
	if n := m.watches.Load() + j.watches.Load(); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

func TestWatchEnds(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "mkdir d; mkfifo fifo; ln -s / link; mkdir locked; chmod 0 locked; touch file")
	for path, want := range map[string]error{"fifo": ErrNotRegular, "link": ErrNotRegular, "../x": ErrOutside, "/proc": ErrNotRegular} {
		if _, err := j.Watch(t.Context(), path, true); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if _, err := j.Watch(t.Context(), "locked", true); err == nil {
		t.Error("watches what the tenant may not read")
	}
	next, _ := watching(t, j, "d", true)
	sh(t, j, "rmdir d")
	if e := next(); says(e) != "delete /workspace/d/" {
		t.Errorf("got %q", says(e))
	}
	if e := next(); e.Op != "" {
		t.Errorf("after its end: %q", says(e))
	}
	file, _ := watching(t, j, "file", false)
	sh(t, j, "echo x > file")
	if e := file(); says(e) != "modify /workspace/file" {
		t.Errorf("got %q", says(e))
	}
	all, _ := watching(t, j, "/workspace", true)
	var more []func()
	for range maxWatches - 2 {
		_, stop := watching(t, j, "/workspace", false)
		more = append(more, stop)
	}
	if _, err := j.Watch(t.Context(), "/workspace", true); !errors.Is(err, ErrBusy) {
		t.Errorf("one watch too many: %v", err)
	}
	for _, stop := range more {
		stop()
	}
	// The end of the jail ends the watch.
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	for e := all(); e.Op != ""; e = all() {
	}
	if n := m.watches.Load(); n > 1 { // the first one may still be closing
		t.Errorf("%d watches are left", n)
	}
}

// TestWatchOverflow: a reader that does not keep up is told so, and no memory
// is spent on what it misses.
func TestWatchOverflow(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	events, err := j.Watch(ctx, "/workspace", true)
	if err != nil {
		t.Fatal(err)
	}
	// Nobody reads while more happens than the kernel keeps.
	o := sh(t, j, `python3 -c 'import os
for i in range(8500):
    open(f"f{i}", "w").close()
    os.unlink(f"f{i}")
'`)
	if o.exit.Code != 0 {
		t.Fatal(o.stderr)
	}
	var ops []string
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		if ops = append(ops, e.Op); e.Op == WatchOverflow {
			break
		}
	}
	if len(ops) < 100 || !slices.Contains(ops, WatchOverflow) {
		t.Errorf("%d events without an overflow", len(ops))
	}
	// Folders beyond the bound are an overflow, too.
	if o := sh(t, j, fmt.Sprintf(`python3 -c 'import os
for i in range(%d): os.mkdir(f"d{i}")'`, maxWatched+10)); o.exit.Code != 0 {
		t.Fatal(o.stderr)
	}
	wide, stop := watching(t, j, "/workspace", true)
	if e := wide(); e.Op != WatchOverflow || e.Reason == "" {
		t.Errorf("got %+v", e)
	}
	stop()
}
