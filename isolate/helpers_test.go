package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const guestDir = "../build/guests"

var testLimits = Limits{Wall: 5 * time.Second, CPU: 2 * time.Second, Memory: 64 << 20,
	Output: 1 << 20, Result: 1 << 20, Calls: 100, Requests: 5, Concurrency: 8}

// shared is the in-process pool of all tests that need no own one.
var shared Pool

func newPool(t testing.TB) Pool {
	t.Helper()
	if shared == nil {
		p, err := NewInProcess(context.Background(), Config{GuestDir: guestDir, CacheDir: workersCache})
		if err != nil {
			t.Fatal(err)
		}
		shared = p
	}
	return shared
}

func newWorkers(t testing.TB, n int) *workerPool {
	t.Helper()
	p := newWorkersIn(t, testCache, n)
	// Python, too: what a test measures is not to be beside its compilation.
	if err := p.python.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

func newWorkersIn(t testing.TB, cache string, n int) *workerPool {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	p, err := NewWorkers(context.Background(), Config{GuestDir: guestDir, CacheDir: cache, Workers: n, Args: []string{"isolate-worker"}, UIDBase: testUID, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p.(*workerPool)
}

const testUID = 0x38100000

// fakeHost answers calls with a function and keeps events.
type fakeHost struct {
	call func(ctx context.Context, c Call) (json.RawMessage, error)

	mu     sync.Mutex
	events []Event
}

func (h *fakeHost) Call(ctx context.Context, c Call) (json.RawMessage, error) {
	if h.call == nil {
		return nil, errors.New("nothing answers")
	}
	return h.call(ctx, c)
}

func (h *fakeHost) Event(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

func (h *fakeHost) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, e := range h.events {
		fmt.Fprintf(&b, "%s: %s", e.Level, e.Message)
		if e.Data != nil {
			fmt.Fprintf(&b, " %s", e.Data)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func js(src string) *Request {
	return &Request{Tenant: "alice", Language: "js", Main: "main.js", Modules: map[string]string{"main.js": src}, Limits: testLimits}
}

func ts(src string) *Request {
	r := js(src)
	r.Language, r.Main, r.Modules = "ts", "main.ts", map[string]string{"main.ts": src}
	return r
}

func run1(t testing.TB, p Pool, r *Request, h Host) *Result {
	t.Helper()
	if h == nil {
		h = &fakeHost{}
	}
	res, err := p.Run(context.Background(), r, h)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func asError[T error](err error, target *T) bool { return errors.As(err, target) }

// waitFor waits until a condition holds, and fails the test if it does not.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("what was waited for did not happen")
		}
	}
}
