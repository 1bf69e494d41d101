package cpython

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"

	"sandboxd/isolate/guests"
)

const (
	guestDir = "../../build/guests"
	memory   = 128 << 20
)

// testCode has the compiled code of all tests, shared with package isolate's,
// testDir the snapshot.
const (
	testCode = "../../build/cache/test/workers"
	testDir  = "../../build/cache/test/cpython"
)

func TestMain(m *testing.M) {
	for _, dir := range []string{testCode, testDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func cache(t *testing.T) wazero.CompilationCache {
	t.Helper()
	c, err := wazero.NewCompilationCacheWithDir(testCode)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func boot(t *testing.T) *Snapshot {
	t.Helper()
	wasm, err := guests.Load(guestDir, "python")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Boot(context.Background(), BootOptions{Wasm: wasm, Cache: cache(t), Dir: testDir, MaxMemory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func newEngine(t *testing.T, warm func(context.Context, *VM) error) *Engine {
	var o Options
	if warm != nil {
		o.Warm = append(o.Warm, warm)
	}
	return newEngineOf(t, o)
}

func newEngineOf(t *testing.T, o Options) *Engine {
	t.Helper()
	o.Snapshot, o.Cache, o.MaxMemory, o.Idle = boot(t), cache(t), memory, 1
	e, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// fakeHooks keep what the guest says. ticks, where not 0, is after how many of
// them the run ends.
type fakeHooks struct {
	messages []string
	output   bytes.Buffer
	ticks    int
}

var errStop = errors.New("stopped")

func (h *fakeHooks) Message(b []byte) ([]byte, error) {
	h.messages = append(h.messages, string(b))
	return []byte(`o{"answer":1}`), nil
}
func (h *fakeHooks) Write(_ int, b []byte) error { h.output.Write(b); return nil }
func (h *fakeHooks) Tick() error {
	if h.ticks--; h.ticks == 0 {
		return errStop
	}
	return nil
}
func (h *fakeHooks) Now() (int64, int64, error) { return 1e18, 5e9, nil }
func (h *fakeHooks) Sleep(int64) error          { return nil }
func (h *fakeHooks) Random(b []byte)            { clear(b) }
func (h *fakeHooks) Large()                     {}

func job(src string) Job { return jobWith(src, "[]") }

// jobWith has bindings, in JSON.
func jobWith(src, bindings string) Job {
	b, _ := json.Marshal(map[string]any{"main": "main.py", "modules": map[string]string{"main.py": src}, "input": nil,
		"env": map[string]string{}, "bindings": json.RawMessage(bindings), "fetch": false})
	return Job{Message: b, Memory: memory}
}

func TestRun(t *testing.T) {
	e := newEngine(t, nil)
	for range 3 {
		vm, err := e.Get(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		h := &fakeHooks{}
		if err := vm.Run(h, job("import time\ndef main():\n    print('hi')\n    return [time.time(), 6 * 7]")); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(h.messages, " "); got != "S D[1000000000.0,42]" || h.output.String() != "hi\n" {
			t.Errorf("messages %q, output %q", got, h.output.String())
		}
		if vm.Fuel() <= 0 || vm.Memory() < e.MinMemory() {
			t.Errorf("fuel %d, memory %d", vm.Fuel(), vm.Memory())
		}
		e.Put(vm)
	}
	if s := e.Stats(); s.Resets != 3 || s.Idle != 1 {
		t.Errorf("%+v", s)
	}
}

// TestResetIsExact compares every byte of a used VM's memory with the image.
func TestResetIsExact(t *testing.T) {
	dirty := `import json, re, collections, random
x = [str(i) * 50 for i in range(5000)]
json.marker = 'm' * 100000
def main():
    open('/tmp/f', 'w').write('x')
    return random.random()`
	e := newEngine(t, func(_ context.Context, vm *VM) error { return vm.Run(&fakeHooks{}, job("def main(): return 1")) })
	image, err := io.ReadAll(io.NewSectionReader(e.img.File(), 0, math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	vm, err := e.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := vm.Run(&fakeHooks{}, job(dirty)); err != nil {
			t.Fatal(err)
		}
		now, _ := vm.mod.Memory().Read(0, uint32(len(image)))
		if bytes.Equal(now, image) {
			t.Fatal("the run has changed nothing: the test sees nothing")
		}
		if err := vm.reset(); err != nil {
			if uint64(vm.mod.Memory().Size()) > e.img.Size() {
				return // it has grown: a new one is made
			}
			t.Fatal(err)
		}
		now, _ = vm.mod.Memory().Read(0, uint32(len(image)))
		if !bytes.Equal(now, image) {
			t.Fatal("the memory is not as new")
		}
		if !vm.sys.Clean() || vm.inst.Values()[0] != e.state.Globals[0].Value {
			t.Error("something of the run is left")
		}
	}
	e.Put(vm)
}

func TestTrim(t *testing.T) {
	warm := func(_ context.Context, vm *VM) error { return vm.Run(&fakeHooks{}, job("def main(): return 1")) }
	e := newEngineOf(t, Options{Warm: []func(context.Context, *VM) error{warm}, IdleFor: 20 * time.Millisecond})
	vm, err := e.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := vm.Run(&fakeHooks{}, job("x = list(range(1000))")); err != nil {
		t.Fatal(err)
	}
	e.Put(vm)
	for start := time.Now(); e.Stats().Trims == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("an idle VM is not trimmed")
		}
	}
	vm, err = e.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Put(vm)
	h := &fakeHooks{}
	if err := vm.Run(h, job("def main(): return 2")); err != nil || h.messages[1] != "D2" {
		t.Errorf("after it: %v, %q", err, h.messages)
	}
}

func TestEnds(t *testing.T) {
	e := newEngine(t, nil)
	for name, c := range map[string]struct {
		src   string
		ticks int
		is    func(error) bool
	}{
		"tick":    {"while True: pass", 3, func(err error) bool { return errors.Is(err, errStop) }},
		"exit":    {"import os\nos._exit(7)", 0, func(err error) bool { var x *ExitError; return errors.As(err, &x) && x.Code == 7 }},
		"memory":  {"x = []\nwhile True: x.append(bytearray(1 << 20))", 0, func(err error) bool { var x *MemoryError; return errors.As(err, &x) && x.Want > x.Limit }},
		"crash":   {"import _testcapi\n_testcapi.crash_no_current_thread()", 0, func(err error) bool { var x *CrashError; return errors.As(err, &x) }},
		"message": {"import os\nos.write(0, b'hello')", 0, func(err error) bool { return err == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			vm, err := e.Get(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if err := vm.Run(&fakeHooks{ticks: c.ticks}, job(c.src)); !c.is(err) {
				t.Errorf("ended with %v", err)
			}
			dead := vm.Err() != nil
			if dead && vm.Run(&fakeHooks{}, job("")) == nil {
				t.Error("a dead VM runs")
			}
			e.Put(vm)
			if again, err := e.Get(context.Background()); err != nil {
				t.Error(err)
			} else {
				if dead && again == vm {
					t.Error("a VM that was ended in the middle is used again")
				}
				e.Put(again)
			}
		})
	}
}

func TestKept(t *testing.T) {
	first := boot(t) // writes, or finds what another test wrote
	start := time.Now()
	second := boot(t)
	took := time.Since(start)
	if fmt.Sprint(first.State) != fmt.Sprint(second.State) {
		t.Errorf("states %v and %v", first.State, second.State)
	}
	paths, err := filepath.Glob(filepath.Join(testDir, keptPrefix+"*"+keptSuffix))
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	b, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func([]byte) []byte{
		"changed": func(b []byte) []byte { b[len(b)-100]++; return b },
		"cut":     func(b []byte) []byte { return b[:len(b)/2] },
		"empty":   func([]byte) []byte { return nil },
		"no line": func([]byte) []byte { return []byte("{}") },
	} {
		if err := os.WriteFile(paths[0], change(bytes.Clone(b)), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := loadKept(paths[0]); err == nil {
			s.Close()
			t.Errorf("a %s snapshot is taken", what)
		}
	}
	third := boot(t)
	if third.State.Dispatch == 0 {
		t.Errorf("state %v", third.State)
	}
	t.Logf("from the kept snapshot in %v", took)
}
