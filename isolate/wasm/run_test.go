package wasm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// guests are compiled once, by the Go toolchain.
var guests struct {
	sync.Mutex
	dir     string
	modules map[string]*Module
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "wasm-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	guests.dir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// guest gives the compiled testdata/name.
func guest(t testing.TB, name string) *Module {
	t.Helper()
	guests.Lock()
	defer guests.Unlock()
	if m := guests.modules[name]; m != nil {
		return m
	}
	out := filepath.Join(guests.dir, name+".wasm")
	args := []string{"build", "-o", out}
	if name == "reactor" {
		args = append(args, "-buildmode=c-shared")
	}
	cmd := exec.Command("go", append(args, "main.go")...)
	cmd.Dir = filepath.Join("testdata", name)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Compile(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	if guests.modules == nil {
		guests.modules = map[string]*Module{}
	}
	guests.modules[name] = m
	return m
}

func compile(t testing.TB, wasm []byte) *Module {
	t.Helper()
	m, err := Compile(context.Background(), wasm)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// world is what a test's run has around it.
type testWorld struct {
	out    [3]bytes.Buffer
	ticks  int
	limit  int // ticks
	slept  int64
	calls  []string
	result []byte
	logs   []string
	answer []byte

	// timed measures the longest stretch of the thread's time between two ticks.
	timed         bool
	last, longest time.Duration
}

func (w *testWorld) look() {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // does not fail
	now := time.Duration(ts.Nano())
	if w.last != 0 {
		w.longest = max(w.longest, now-w.last)
	}
	w.last = now
}

var errTicks = errors.New("too much work")

func (w *testWorld) Write(fd int, b []byte) error {
	if w.out[fd].Len() > 1<<20 {
		return errors.New("too much output")
	}
	w.out[fd].Write(b)
	return nil
}

func (w *testWorld) Tick() error {
	if w.timed {
		w.look()
	}
	if w.ticks++; w.limit > 0 && w.ticks > w.limit {
		return errTicks
	}
	return nil
}

func (w *testWorld) Now() (realtime, monotonic int64, err error) {
	return 1_700_000_000_000_000_000 + w.slept, time.Second.Nanoseconds() + w.slept, nil
}

func (w *testWorld) Sleep(ns int64) error {
	if w.slept += ns; w.slept > int64(time.Hour) {
		return errors.New("slept too long")
	}
	return nil
}

func (w *testWorld) Random(b []byte) { clear(b) }

func (w *testWorld) Call(request []byte) ([]byte, error) {
	w.calls = append(w.calls, string(request))
	return w.answer, nil
}

func (w *testWorld) Result(value []byte) error {
	w.result = bytes.Clone(value)
	return nil
}

func (w *testWorld) Log(level int, message []byte) error {
	w.logs = append(w.logs, fmt.Sprint(level, " ", string(message)))
	return nil
}

func do(t testing.TB, m *Module, w *testWorld, job Job) (uint32, error) {
	t.Helper()
	if job.Memory == 0 {
		job.Memory = 64 << 20
	}
	if job.Args == nil {
		job.Args = []string{"main.wasm"}
	}
	return m.NewRun(w, job).Do()
}

func TestCommand(t *testing.T) {
	m := guest(t, "command")
	for _, x := range []struct {
		name, input, want string
		status            uint32
		stderr            string
	}{
		{"echo", `{"do":"echo","text":"hi"}`, `{"args":["main.wasm","-v"],"env":["A=1","B=two words"],"text":"hi"}`, 0, "to standard error"},
		{"no input", ``, `{"args":["main.wasm","-v"],"env":["A=1","B=two words"],"text":""}`, 0, "to standard error"},
		{"files", `{"do":"files"}`, `["one\ntwo\nthree\n","one\ntwo\nthree\n",["a","hard","link","alpha","beta"],14,"lph",true]`, 0, ""},
		{"sleep", `{"do":"sleep","n":1500}`, `1500`, 0, ""},
		{"exit", `{"do":"exit","n":7}`, ``, 7, ""},
		{"panic", `{"do":"panic"}`, ``, 2, "panic: told to"},
		{"outside", `{"do":"outside"}`, `"[data tmp] \u003cnil\u003e"`, 0, ""},
		{"many descriptors", `{"do":"open","n":300}`, `"252 true"`, 0, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := &testWorld{}
			status, err := do(t, m, w, Job{Args: []string{"main.wasm", "-v"}, Env: []string{"A=1", "B=two words"}, Input: []byte(x.input),
				Files: map[string]string{"data/words.txt": "alpha\nbeta\n"}})
			if err != nil || status != x.status || strings.TrimSpace(w.out[1].String()) != x.want || !strings.Contains(w.out[2].String(), x.stderr) {
				t.Errorf("status %d, %v\nstdout %s\nstderr %s", status, err, w.out[1].String(), w.out[2].String())
			}
		})
	}
}

func TestReactor(t *testing.T) {
	w := &testWorld{answer: []byte(`{"value":5}`)}
	status, err := do(t, guest(t, "reactor"), w, Job{Input: []byte(`[{"binding":"KV","method":"get","args":["k"]}]`)})
	if err != nil || status != 0 || string(w.result) != `[{"value":5}]` || fmt.Sprint(w.logs) != "[1 1 calls]" {
		t.Errorf("status %d, %v, result %s, logs %q, %s", status, err, w.result, w.logs, w.out[2].String())
	}
	if len(w.calls) != 1 || w.calls[0] != `{"binding":"KV","method":"get","args":["k"]}` {
		t.Errorf("calls %q", w.calls)
	}
	if status, err := do(t, guest(t, "reactor"), &testWorld{}, Job{Input: []byte(`5`)}); err != nil || status != 2 {
		t.Errorf("status %d, %v", status, err)
	}
}

// Each run begins as the first one did, whatever the ones before it did.
func TestFresh(t *testing.T) {
	m := guest(t, "command")
	var first []byte
	for i := range 3 {
		w := &testWorld{}
		if _, err := do(t, m, w, Job{Input: []byte(`{"do":"random"}`)}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = w.out[1].Bytes()
		} else if !bytes.Equal(first, w.out[1].Bytes()) {
			t.Errorf("run %d gives %s, the first %s", i, w.out[1].Bytes(), first)
		}
	}
}

// The same run uses the same fuel.
func TestFuelIsExact(t *testing.T) {
	m := guest(t, "command")
	fuel := func() int64 {
		r := m.NewRun(&testWorld{}, Job{Args: []string{"x"}, Input: []byte(`{"do":"files"}`), Files: map[string]string{"data/words.txt": "a\n"}, Memory: 64 << 20})
		if _, err := r.Do(); err != nil {
			t.Fatal(err)
		}
		return r.Fuel()
	}
	first := fuel()
	for range 5 {
		if f := fuel(); f != first {
			t.Errorf("fuel %d, at first %d", f, first)
		}
	}
	if first < 100_000 {
		t.Errorf("fuel %d", first)
	}
}

func TestLimits(t *testing.T) {
	m := guest(t, "command")
	var mem *MemoryError
	var trap *TrapError
	for _, x := range []struct {
		do   string
		want func(w *testWorld, err error) bool
	}{
		{"spin", func(_ *testWorld, err error) bool {
			return errors.Is(err, errTicks) && strings.Contains(stackOf(err), "main.spin")
		}},
		{"recurse", func(w *testWorld, err error) bool {
			return errors.As(err, &mem) || errors.As(err, &trap) || errors.Is(err, errTicks) || err == nil && strings.Contains(w.out[2].String(), "stack")
		}},
		{"grow", func(w *testWorld, err error) bool {
			return errors.As(err, &mem) && mem.Limit == 64<<20 && mem.Want > mem.Limit
		}},
		{"flood", func(_ *testWorld, err error) bool { return err != nil && err.Error() == "too much output" }},
		{"fill", func(w *testWorld, err error) bool {
			var said string
			return errors.As(err, &mem) || json.Unmarshal(w.out[1].Bytes(), &said) == nil && strings.Contains(said, "No space")
		}},
	} {
		t.Run(x.do, func(t *testing.T) {
			w := &testWorld{limit: 20_000}
			if status, err := do(t, m, w, Job{Input: fmt.Appendf(nil, `{"do":%q}`, x.do)}); !x.want(w, err) {
				t.Errorf("status %d, %v %+v\n%.300s\n%.300s", status, err, err, w.out[1].String(), w.out[2].String())
			}
		})
	}
}

func stackOf(err error) string {
	s := &StoppedError{}
	errors.As(err, &s)
	return s.Stack
}
