package recording

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/isolate"
)

func call(nth int, binding, args string) isolate.Call {
	return isolate.Call{Nth: nth, Binding: binding, Method: "find", Args: json.RawMessage(args)}
}

// record makes a recording of n calls answered in a random order; every third
// fails.
func record(t *testing.T, n int) *Recording {
	t.Helper()
	r := NewRecorder(&isolate.Request{Language: "js"}, isolate.Identity{}, 1<<20, NewBudget(1<<20))
	for i := range n {
		r.Asked(call(i+1, "search", fmt.Sprintf("[%d]", i+1)))
	}
	for _, i := range rand.Perm(n) {
		if nth := i + 1; nth%3 == 0 {
			r.Answered(nth, nil, fmt.Errorf("no %d", nth))
		} else {
			r.Answered(nth, json.RawMessage(fmt.Sprint(nth)), nil)
		}
	}
	rec := r.Finish("alice", "r", "", Outcome{}, time.Now(), time.Hour)
	if rec.Incomplete != "" || len(rec.Calls) != n || len(rec.Order) != n {
		t.Fatalf("recorded %+v", rec)
	}
	return rec
}

// TestPlayerKeepsTheOrder: whichever goroutine asks first, the answers come in
// the recorded order.
func TestPlayerKeepsTheOrder(t *testing.T) {
	rec := record(t, 50)
	for range 20 {
		p := NewPlayer(rec, func(error) {})
		var mu sync.Mutex
		var got []int
		var group sync.WaitGroup
		for i := range 50 {
			p.Called(i + 1)
		}
		for i := range 50 {
			group.Go(func() {
				c := call(i+1, "search", fmt.Sprintf("[%d]", i+1))
				v, err := p.Call(t.Context(), c)
				mu.Lock()
				defer mu.Unlock()
				p.Answered(c.Nth)
				if c.Nth%3 == 0 && (err == nil || err.Error() != fmt.Sprint("no ", c.Nth)) || c.Nth%3 != 0 && string(v) != fmt.Sprint(c.Nth) {
					t.Errorf("call %d: %s, %v", c.Nth, v, err)
				}
				got = append(got, c.Nth)
				p.Waiting(len(got))
			})
		}
		group.Wait()
		// The last Waiting says that the code wants more than there was.
		if !slices.Equal(got, rec.Order) || !errors.Is(p.Failed(), ErrEnds) {
			t.Fatalf("order %v, want %v; %v", got, rec.Order, p.Failed())
		}
	}
}

func TestPlayerDiverges(t *testing.T) {
	rec := record(t, 2)
	rec.Order = []int{2, 1}
	for name, tt := range map[string]struct {
		calls []isolate.Call
		nth   int
		say   string
	}{
		"other binding":     {[]isolate.Call{call(1, "KV", "[1]")}, 1, "it calls KV.find(1), the recorded run called search.find(1)"},
		"other arguments":   {[]isolate.Call{call(1, "search", "[2]")}, 1, "it calls search.find(2), the recorded run called search.find(1)"},
		"one more":          {[]isolate.Call{call(3, "search", "[3]")}, 3, "made 2 calls"},
		"one by one":        {[]isolate.Call{call(1, "search", "[1]")}, 2, "it waits, the recorded run had called search.find(2)"},
		"space counts, too": {[]isolate.Call{call(1, "search", "[1 ]")}, 1, "SHA-256"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			ended := make(chan error, 2)
			p := NewPlayer(rec, func(err error) { ended <- err })
			var group sync.WaitGroup
			for _, c := range tt.calls {
				p.Called(c.Nth)
				group.Go(func() {
					if v, err := p.Call(ctx, c); err == nil {
						t.Errorf("answered %s", v)
					}
				})
			}
			p.Waiting(0)
			group.Wait()
			var diverged *DivergedError
			if err := <-ended; !errors.As(err, &diverged) || diverged.Nth != tt.nth || !strings.Contains(err.Error(), tt.say) || len(ended) > 0 {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRecorderBounds(t *testing.T) {
	for name, feed := range map[string]func(*Recorder){
		"one answer": func(r *Recorder) {
			r.Asked(call(1, "search", "[1]"))
			r.Answered(1, json.RawMessage(`"`+strings.Repeat("x", 5000)+`"`), nil)
		},
		"many calls": func(r *Recorder) {
			for i := range 100 {
				r.Asked(call(i+1, "search", "[1]"))
			}
		},
		"an answer without a call": func(r *Recorder) { r.Answered(1, nil, nil) },
	} {
		r := NewRecorder(&isolate.Request{Language: "js", Modules: map[string]string{"main.js": "1"}}, isolate.Identity{}, 4096, NewBudget(1<<20))
		feed(r)
		r.Answered(7, nil, errors.New("later"))
		rec := r.Finish("alice", "r", "", Outcome{}, time.Now(), time.Hour)
		if rec.Incomplete == "" || rec.Calls != nil || rec.Order != nil || rec.Request.Modules != nil {
			t.Errorf("%s: %+v", name, rec)
		}
	}
	if r := NewRecorder(&isolate.Request{Input: make([]byte, 5000)}, isolate.Identity{}, 4096, NewBudget(1<<20)); r.incomplete == "" {
		t.Error("a large input is no matter")
	}
}

// TestBudget: recordings that are under way share their memory, and give it back.
func TestBudget(t *testing.T) {
	b := NewBudget(10_000)
	answer := json.RawMessage(`"` + strings.Repeat("x", 6000) + `"`)
	begin := func() *Recorder {
		r := NewRecorder(&isolate.Request{Language: "js"}, isolate.Identity{}, 1<<20, b)
		r.Asked(call(1, "search", "[1]"))
		r.Answered(1, answer, nil)
		return r
	}
	first, second := begin(), begin()
	if first.incomplete != "" || !strings.Contains(second.incomplete, "as much memory") {
		t.Errorf("%q, %q", first.incomplete, second.incomplete)
	}
	first.Close()
	first.Close()
	second.Close()
	if left := b.left.Load(); left != 10_000 {
		t.Errorf("%d bytes are left", left)
	}
	if third := begin(); third.incomplete != "" {
		t.Error(third.incomplete)
	}
}

// TestShownHoldsNoHeader: what is kept of a request to show it.
func TestShownHoldsNoHeader(t *testing.T) {
	args, err := json.Marshal([]isolate.FetchRequest{{URL: "https://a.test/x?key=secret", Method: "POST", Headers: [][2]string{{"authorization", "Bearer secret"}}, Body: []byte("secret")}})
	if err != nil {
		t.Fatal(err)
	}
	c := describe(isolate.Call{Nth: 1, Binding: "fetch", Method: "fetch", Args: args})
	if want := `fetch.fetch("POST","https://a.test/x?…")`; c.String() != want || strings.Contains(fmt.Sprint(c), "secret") || c.ArgsSHA256 != hashOf(args) {
		t.Errorf("%s, want %s; %+v", c.String(), want, c)
	}
	if c := describe(isolate.Call{Binding: "fetch", Args: json.RawMessage(`["secret"]`)}); strings.Contains(fmt.Sprint(c), "secret") {
		t.Errorf("%+v", c)
	}
	long := describe(call(1, "search", `["`+strings.Repeat("ä", maxShown)+`"]`))
	if len(long.Args) > maxShown+3 || !strings.HasSuffix(long.Args, "…") {
		t.Errorf("%d bytes", len(long.Args))
	}
}
