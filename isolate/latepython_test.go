package isolate

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cacheWithoutPython is a copy of the tests' cache that has all compiled code,
// but no snapshot.
func cacheWithoutPython(t *testing.T) string {
	t.Helper()
	newWorkers(t, 1) // fills it
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(testCache)); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "workers", "python-*.snapshot"))
	if err != nil || len(kept) == 0 {
		t.Fatalf("no snapshot is kept: %v", err)
	}
	for _, path := range kept {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestPythonComesLater: JavaScript runs while Python is made, and a run that is
// under way when its worker is replaced ends as it should.
func TestPythonComesLater(t *testing.T) {
	p := newWorkersIn(t, cacheWithoutPython(t), 2)
	preparing := p.Stats().Preparing
	if preparing == "" || !strings.HasPrefix(preparing, "Python: step ") {
		t.Errorf("the pool is ready, and says that %q is being done", preparing)
	}
	called, answer, done := make(chan struct{}), make(chan struct{}), make(chan *Result)
	go func() {
		r := js(`export default (input, env) => env.T.wait()`)
		r.Limits.Wall = time.Minute
		r.Bindings = []Binding{{Name: "T", Methods: []string{"wait"}}}
		done <- run1(t, p, r, &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) {
			close(called)
			<-answer
			return json.RawMessage(`"waited"`), nil
		}})
	}()
	<-called
	p.mu.Lock()
	first := append([]*process(nil), p.workers...)
	p.mu.Unlock()
	check(t, run1(t, p, python("def main(input, env): return 6 * 7"), nil), &fakeHost{}, want{value: "42"})
	if s := p.Stats(); s.Preparing != "" || s.Workers != 2 {
		t.Errorf("%+v", s)
	}
	waitFor(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.workers[0] != first[0] && p.workers[1] != first[1]
	})
	close(answer)
	check(t, <-done, &fakeHost{}, want{value: `"waited"`})
	for _, w := range first {
		w.wait()
	}
}
