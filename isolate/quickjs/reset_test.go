package quickjs

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

// testHooks end the VM with err at the first tick, if that is set.
type testHooks struct {
	bootHooks
	err   error
	ticks int
}

func (h *testHooks) Call(a *Args) (Value, error) { return 0, nil }

func (h *testHooks) Tick() error {
	h.ticks++
	return h.err
}

// fill runs code that leaves marks wherever it can.
const fill = `
globalThis.mark = 'MARKER-' + 'globals';
Object.prototype.mark = 'MARKER-' + 'prototype';
Array.prototype.push = () => 'MARKER-patched';
Math.random();
const keep = [];
for (let i = 0; i < 5000; i++) keep[i] = ('MARKER-' + i).padEnd(40, 'MARKER-');
globalThis.keep = keep;
globalThis.bytes = new Uint8Array(200000).map((_, i) => 'MARKER-'.charCodeAt(i % 7));
Promise.resolve().then(() => 'MARKER-job');
new FinalizationRegistry(() => {}).register({}, 'MARKER-registry');
Symbol.for('MARKER-symbol');
setTimeout(() => 'MARKER-timer', 1);
`

// memory is the whole linear memory.
func (vm *VM) memory() []byte {
	b, _ := vm.mod.Memory().Read(0, vm.mod.Memory().Size())
	return b
}

func contains(vm *VM, s string) bool { return bytes.Contains(vm.memory(), []byte(s)) }

// equalsImage compares the whole state of a VM with what it started from.
func equalsImage(t *testing.T, e *Engine, vm *VM) {
	t.Helper()
	was := make([]byte, e.img.Size())
	if _, err := e.img.File().ReadAt(was, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(vm.memory(), was) {
		t.Error("the memory is not the image's")
	}
	for i, v := range vm.inst.Values() {
		if v != e.state.Globals[i].Value {
			t.Errorf("global %d is %d, was %d", i, v, e.state.Globals[i].Value)
		}
	}
	if vm.Fuel() != 0 || vm.hooks != nil {
		t.Error("there is something left of the call")
	}
}

func TestReset(t *testing.T) {
	e := sharedEngine(t)
	ctx := context.Background()
	vm, err := e.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	equalsImage(t, e, vm)
	if err := vm.Begin(&testHooks{}, 64<<20, 1); err != nil {
		t.Fatal(err)
	}
	if v, threw, err := vm.eval("fill.js", fill, evalGlobal); err != nil || threw {
		t.Fatal(vm.thrown("fill", v, threw, err))
	}
	if !contains(vm, "MARKER-") || !contains(vm, "MARKER-globals") {
		t.Fatal("the marks are not there")
	}
	if err := vm.reset(); err != nil {
		t.Fatal(err)
	}
	if contains(vm, "MARKER-") {
		t.Error("a mark is still there")
	}
	equalsImage(t, e, vm)
	e.Put(vm)
}

// TestReuse runs code again and again in the same VM.
func TestReuse(t *testing.T) {
	e := sharedEngine(t)
	ctx := context.Background()
	used := map[*VM]int{}
	for range 20 {
		vm, err := e.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		used[vm]++
		if contains(vm, "MARKER-") {
			t.Fatal("a mark of another call")
		}
		if err := vm.Begin(&testHooks{}, 64<<20, 1); err != nil {
			t.Fatal(err)
		}
		v, threw, err := vm.eval("a.js", `'mark' in globalThis || 'mark' in {} || [].push(1) !== 1 ? 'dirty' : 'clean'`, evalGlobal)
		if err != nil || threw {
			t.Fatal(vm.thrown("a.js", v, threw, err))
		}
		if text, err := vm.Text(v); err != nil || text != "clean" {
			t.Fatal(text, err)
		}
		if v, threw, err := vm.eval("fill.js", fill, evalGlobal); err != nil || threw {
			t.Fatal(vm.thrown("fill", v, threw, err))
		}
		e.Put(vm)
	}
	if len(used) == 20 {
		t.Error("no VM was used twice")
	}
}

// TestEndedIsNotReused covers the calls that end in the middle.
func TestEndedIsNotReused(t *testing.T) {
	e := sharedEngine(t)
	ctx := context.Background()
	stop := errors.New("stop")
	for name, src := range map[string]string{"fuel": `for (;;) {}`, "memory": `const a = []; for (;;) a.push(new ArrayBuffer(1e6))`} {
		t.Run(name, func(t *testing.T) {
			vm, err := e.Get(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := vm.Begin(&testHooks{err: stop}, 16<<20, 1); err != nil {
				t.Fatal(err)
			}
			_, _, err = vm.eval("a.js", src, evalGlobal)
			var mem *MemoryError
			if !errors.Is(err, stop) && !errors.As(err, &mem) {
				t.Fatal(err)
			}
			if _, _, again := vm.eval("a.js", "1", evalGlobal); again != err {
				t.Errorf("a dead VM answers %v", again)
			}
			if vm.reset() == nil {
				t.Error("a dead VM was reset")
			}
			e.Put(vm)
			for range 10 {
				next, err := e.Get(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if next == vm {
					t.Fatal("a dead VM is given out")
				}
				defer e.Put(next)
			}
		})
	}
}

// TestGrownIsNotReused: the size of a memory cannot be taken back.
func TestGrownIsNotReused(t *testing.T) {
	e := sharedEngine(t)
	vm, err := e.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := vm.Begin(&testHooks{}, 64<<20, 1); err != nil {
		t.Fatal(err)
	}
	if v, threw, err := vm.eval("a.js", `globalThis.a = new Uint8Array(2e7).fill(1); 1`, evalGlobal); err != nil || threw {
		t.Fatal(vm.thrown("a.js", v, threw, err))
	}
	if err := vm.reset(); err == nil || !strings.Contains(err.Error(), "memory has") {
		t.Error(err)
	}
	e.Put(vm)
}

func TestRandomDiffers(t *testing.T) {
	e := sharedEngine(t)
	seen := map[string]bool{}
	for _, seed := range []uint64{0, 1, 2, 1 << 40} {
		vm, err := e.Get(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := vm.Begin(&testHooks{}, 64<<20, seed); err != nil {
			t.Fatal(err)
		}
		v, threw, err := vm.eval("a.js", `Math.random() + ' ' + Math.random()`, evalGlobal)
		if err != nil || threw {
			t.Fatal(vm.thrown("a.js", v, threw, err))
		}
		text, err := vm.Text(v)
		if err != nil {
			t.Fatal(err)
		}
		seen[text] = true
		e.Put(vm)
	}
	if len(seen) != 3 { // 0 is taken for 1
		t.Errorf("sequences %v", seen)
	}
}

func TestBegin(t *testing.T) {
	e := sharedEngine(t)
	vm, err := e.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, memory := range []uint64{0, 1 << 20, 1 << 40} {
		if err := vm.Begin(&testHooks{}, memory, 1); err == nil {
			t.Errorf("a memory of %d is taken", memory)
		}
	}
	e.Put(vm)
}

func TestClosed(t *testing.T) {
	e := newEngine(t)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Get(context.Background()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
