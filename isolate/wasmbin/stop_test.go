package wasmbin

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"
)

// bomb is a module that would run for ages, and the fuel that it may have.
type bomb struct {
	name string
	wasm []byte
}

func emptyLoop() []byte {
	var a asm
	a.fn("run", types(I32), types(I32), nil, blk(opLoop, blockEmpty, br(0)), get(0))
	return a.bytes()
}

// emptyLoops are the other shapes of a loop without content.
func emptyLoops() (out []bomb) {
	for name, body := range map[string][]byte{
		"br_if":    blk(opLoop, blockEmpty, i32(1), brIf(0)),
		"br_table": blk(opLoop, blockEmpty, i32(0), op(opBrTable, 0, 0)),
		"if":       blk(opLoop, blockEmpty, i32(1), op(opIf, blockEmpty), br(1), op(opEnd)),
		"nested":   blk(opLoop, blockEmpty, blk(opLoop, blockEmpty, br(1))),
		"outwards": blk(opLoop, blockEmpty, blk(opLoop, blockEmpty, i32(0), brIf(0), br(1))),
		"block":    blk(opLoop, blockEmpty, blk(opBlock, blockEmpty, br(1))),
	} {
		var a asm
		a.fn("run", types(I32), types(I32), nil, body, get(0))
		out = append(out, bomb{"loop by " + name, a.bytes()})
	}
	return out
}

// operandLoop goes round with an operand on the stack.
func operandLoop() []byte {
	var a asm
	typ := a.typ(types(I32), types(I32))
	a.fn("run", types(I32), types(I32), nil, get(0), blkT(opLoop, typ, i32(1), brIf(0)))
	return a.bytes()
}

// callTree has no loop: 60 functions, each calling the next twice.
func callTree(indirect bool) []byte {
	var a asm
	typ := a.typ(types(I32), types(I32))
	const n = 60
	var all []uint32
	for i := range n {
		name := ""
		if i == 0 {
			name = "run"
		}
		next := call(uint32(i + 1))
		if indirect {
			next = append(append(i32(int32(i+1)), ix(opCallIndirect, typ)...), 0)
		}
		all = append(all, a.fn(name, types(I32), types(I32), nil, get(0), next, next))
	}
	all = append(all, a.fn("", types(I32), types(I32), nil, get(0)))
	a.tables = []Table{{Type: FuncRef, Min: n + 1}}
	a.elems = [][]byte{funcElems(false, all...)}
	return a.bytes()
}

// fills fills 16 MiB over and over, straight on.
func fills() []byte {
	var a asm
	a.memory = &Memory{Min: 256}
	one := slices.Concat(i32(0), get(0), i32(1<<24), fc(fcMemoryFill, 0))
	a.fn("run", types(I32), types(I32), nil, slices.Repeat(one, 200), get(0))
	return a.bytes()
}

// copies, table fills and table grows do the same elsewhere.
func otherBulk() (out []bomb) {
	for name, one := range map[string][]byte{
		"memory.copy": slices.Concat(i32(0), i32(1<<23), i32(1<<23), fc(fcMemoryCopy, 0, 0)),
		"table.fill":  slices.Concat(i32(0), op(opRefNull, byte(FuncRef)), i32(1<<20), fc(fcTableFill, 0)),
		"table.copy":  slices.Concat(i32(0), i32(1), i32(1<<20-1), fc(fcTableCopy, 0, 0)),
	} {
		var a asm
		a.memory = &Memory{Min: 256}
		a.tables = []Table{{Type: FuncRef, Min: 1 << 20}}
		a.fn("run", types(I32), types(I32), nil, slices.Repeat(one, 200), get(0))
		out = append(out, bomb{name, a.bytes()})
	}
	return out
}

// Everything that could run without end, or nearly, runs out of fuel instead.
func TestStopped(t *testing.T) {
	bombs := []bomb{
		{"loop by br", emptyLoop()},
		{"loop with an operand", operandLoop()},
		{"tree of calls", callTree(false)},
		{"tree of indirect calls", callTree(true)},
		{"memory.fill", fills()},
	}
	bombs = append(append(bombs, emptyLoops()...), otherBulk()...)
	for _, b := range bombs {
		t.Run(b.name, func(t *testing.T) {
			h := newHost(t)
			h.quantum, h.budget = 1_000_000, 50_000_000
			m := h.instantiate(metered(t, b.wasm))
			_, err := m.ExportedFunction("run").Call(h.ctx, 1)
			if !errors.Is(err, errOutOfFuel) {
				t.Fatalf("not stopped: %v", err)
			}
			if h.given != h.budget {
				t.Errorf("stopped with %d of %d given", h.given, h.budget)
			}
		})
	}
}

// What grows is charged when it grows.
func TestGrowthIsCharged(t *testing.T) {
	var a asm
	a.memory = &Memory{Min: 1, Max: 1000, HasMax: true}
	a.tables = []Table{{Type: FuncRef, Min: 1, Max: 1 << 20, HasMax: true}}
	a.fn("pages", types(I32), types(I32), nil, get(0), op(opMemoryGrow, 0))
	a.fn("entries", types(I32), types(I32), nil, op(opRefNull, byte(FuncRef)), get(0), fc(fcTableGrow, 0))
	for _, x := range []struct {
		fn       string
		arg      uint64
		min, max int64
	}{
		{"pages", 100, 100 * costPage, 100*costPage + 1000},
		{"pages", 0, costGrow, costGrow + 100},
		{"pages", 1 << 30, costGrow, costGrow + 100}, // refused
		{"entries", 5000, 5000, 6000},
		{"entries", 1 << 30, costGrow, costGrow + 100},
	} {
		h := newHost(t)
		m := h.instantiate(metered(t, a.bytes()))
		if _, err := m.ExportedFunction(x.fn).Call(h.ctx, x.arg); err != nil {
			t.Fatal(err)
		}
		if used := h.used(m); used < x.min || used > x.max {
			t.Errorf("%s(%d) used %d, want %d to %d", x.fn, x.arg, used, x.min, x.max)
		}
	}
}

// A trap or a refusal in the host's function ends the run, whatever the module
// has on its stack, and leaves the fuel readable.
func TestHostEndsRun(t *testing.T) {
	h := newHost(t)
	h.budget = 0
	m := h.instantiate(metered(t, fib()))
	if _, err := m.ExportedFunction("run").Call(h.ctx, 20); !errors.Is(err, errOutOfFuel) {
		t.Fatalf("not stopped: %v", err)
	}
	if used := h.used(m); used <= 0 {
		t.Errorf("used %d", used)
	}
}

// While a metered module spins, the collector can stop the world: compiled
// code cannot be pre-empted, but its calls to the host can.
func TestCollectorIsNotHeldUp(t *testing.T) {
	h := newHost(t)
	h.quantum = 1_000_000
	m := h.instantiate(metered(t, emptyLoop()))
	running, done := make(chan struct{}), make(chan error, 1)
	h.budget = 1 << 62
	h.onRefill = func(n int) {
		if n == 1 {
			close(running)
		}
	}
	go func() {
		_, err := m.ExportedFunction("run").Call(h.ctx, 1)
		done <- err
	}()
	<-running
	start := time.Now()
	for range 5 {
		runtime.GC()
	}
	took := time.Since(start)
	h.stop.Store(true)
	if err := <-done; !errors.Is(err, errOutOfFuel) {
		t.Fatalf("not stopped: %v", err)
	}
	// An unmetered loop would hold the first collection for ever.
	t.Logf("5 collections took %v", took)
	if took > 10*time.Second {
		t.Errorf("5 collections took %v", took)
	}
}

// Work that a recursion leaves for its way back is charged and checked on the
// way back, not all at once on the way down.
func TestUnwindingIsChecked(t *testing.T) {
	small := slices.Concat(get(0), i32(12345), op(i32Eq), op(opIf, blockEmpty),
		slices.Repeat(slices.Concat(get(1), i32(3), op(i32Mul), set(1)), 8), op(opEnd))
	large := slices.Repeat(slices.Concat(get(1), i32(3), op(i32Mul), set(1)), 1000)
	for name, tail := range map[string][]byte{
		"small parts": slices.Repeat(small, 100),
		"a large one": large,
		"loop":        blk(opLoop, blockEmpty, slices.Repeat(small, 100), i32(0), brIf(0)),
	} {
		var a asm
		note := a.importFunc("env", "note", types(I32), types(I32))
		a.fn("run", types(I32), types(I32), types(I32),
			get(0), op(i32Eqz),
			op(opIf, blockEmpty), get(0), call(note), op(opDrop), op(opElse),
			get(0), i32(1), op(i32Sub), call(1), op(opDrop), tail, op(opEnd),
			get(1))
		h := newHost(t)
		deepest := -1
		h.onNote = func() { deepest = h.refills }
		m := h.instantiate(metered(t, a.bytes()))
		if _, err := m.ExportedFunction("run").Call(h.ctx, 1000); err != nil {
			t.Fatal(err)
		}
		// Each tail costs over 400 units even where no arm is taken, and 1000
		// of them over 40 quanta of 10000.
		if down, up := deepest, h.refills-deepest; down < 1 || up < 40 {
			t.Errorf("%s: %d refills on the way down, %d on the way up", name, down, up)
		}
	}
}

// A leaf that calls nothing but does a lot is checked too, or a row of calls
// to it would run unchecked.
func TestLargeLeafIsChecked(t *testing.T) {
	var a asm
	leaf := a.fn("", types(I32), types(I32), nil, slices.Repeat(slices.Concat(get(0), i32(3), op(i32Mul), set(0)), 2000), get(0))
	a.fn("run", types(I32), types(I32), nil, get(0), slices.Repeat(call(leaf), 1000))
	h := newHost(t)
	h.quantum = 100_000
	m := h.instantiate(metered(t, a.bytes()))
	if _, err := m.ExportedFunction("run").Call(h.ctx, 1); err != nil {
		t.Fatal(err)
	}
	if h.refills < 75 { // 8 million units
		t.Errorf("%d refills", h.refills)
	}
}
