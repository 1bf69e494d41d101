package wasmbin

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// section returns a module of one function type, one function and the section.
func section(id byte, content ...byte) []byte {
	b := append(slices.Clone(magic), 1, 4, 1, 0x60, 0, 0)
	if id != secCode {
		return appendVec(append(b, id), content)
	}
	b = append(b, 3, 2, 1, 0)
	return appendVec(append(b, id), content)
}

// body returns the module whose only function has this body.
func bodyOf(code ...byte) []byte {
	return section(secCode, append([]byte{1, byte(len(code))}, code...)...)
}

func TestDecodeErrors(t *testing.T) {
	for _, x := range []struct {
		name, section, reason string
		wasm                  []byte
	}{
		{"nothing", "header", "not a WebAssembly", nil},
		{"another version", "header", "not a WebAssembly", []byte{0, 'a', 's', 'm', 2, 0, 0, 0}},
		{"unknown section", "header", "unknown section", append(slices.Clone(magic), 13, 0)},
		{"section too long", "header", "announced", append(slices.Clone(magic), 1, 9, 0)},
		{"section twice", "header", "twice", append(slices.Clone(magic), 1, 1, 0, 1, 1, 0)},
		{"section out of order", "header", "out of order", append(slices.Clone(magic), 3, 1, 0, 1, 1, 0)},
		{"left over", "type", "left over", append(slices.Clone(magic), 1, 2, 0, 0)},
		{"huge vector", "type", "vector of", append(slices.Clone(magic), 1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f)},
		{"number of 33 bits", "type", "32 bits", append(slices.Clone(magic), 1, 5, 0xff, 0xff, 0xff, 0xff, 0x1f)},
		{"endless number", "type", "32 bits", append(slices.Clone(magic), 1, 6, 0x80, 0x80, 0x80, 0x80, 0x80, 0)},
		{"unknown type form", "type", "form", append(slices.Clone(magic), 1, 4, 1, 0x5f, 0, 0)},
		{"unknown value type", "type", "value type", append(slices.Clone(magic), 1, 5, 1, 0x60, 1, 0x22, 0)},
		{"import of a tag", "import", "kind", section(secImport, 1, 0, 0, 4, 0, 0)},
		{"import of no type", "import", "type index", section(secImport, 1, 0, 0, 0, 1)},
		{"import's name", "import", "UTF-8", section(secImport, 1, 1, 0xff, 0, 0, 0)},
		{"table of numbers", "table", "reference type", section(secTable, 1, 0x7f, 0, 0)},
		{"table with flags", "table", "flags", section(secTable, 1, 0x70, 4, 0)},
		{"maximum below minimum", "memory", "below", section(secMemory, 1, 1, 2, 1)},
		{"memory of 64 bits", "memory", "flags", section(secMemory, 1, 4, 1)},
		{"shared memory", "memory", "flags", section(secMemory, 1, 3, 1, 1)},
		{"too many pages", "memory", "65536", section(secMemory, 1, 0, 0x81, 0x80, 4)},
		{"two memories", "memory", "only one", section(secMemory, 2, 0, 1, 0, 1)},
		{"mutability", "global", "mutability", section(secGlobal, 1, 0x7f, 2, opI32Const, 0, opEnd)},
		{"global by addition", "global", "more than one", section(secGlobal, 1, 0x7f, 0, opI32Const, 0, opI32Const, 0, 0x6a, opEnd)},
		{"global by call", "global", "constant", section(secGlobal, 1, 0x7f, 0, opCall, 0, opEnd)},
		{"global by itself", "global", "global index", section(secGlobal, 1, 0x7f, 0, opGlobalGet, 0, opEnd)},
		{"export of nothing", "export", "function index", section(secExport, 1, 0, 0, 0)},
		{"export of a tag", "export", "index", section(secExport, 1, 0, 4, 0)},
		{"start", "start", "function index", section(secStart, 0)},
		{"element of a later kind", "element", "element segment", section(secElement, 1, 8, 0, 0)},
		{"element of nothing", "element", "function index", section(secElement, 1, 1, 0, 1, 0)},
		{"data of a later kind", "data", "data segment", section(secData, 1, 3, 0)},
		{"data announced", "data", "announced", section(secDataCount, 1)},
		{"function without body", "code", "bodies", append(slices.Clone(magic), 1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0)},
		{"bodies too many", "code", "bodies", section(secCode, 2, 2, 0, 0x0b, 2, 0, 0x0b)},
		{"unknown instruction", "code", "unknown instruction 0x6", bodyOf(0, 0x06, opEnd)},
		{"tail call", "code", "unknown instruction 0x12", bodyOf(0, 0x12, 0, opEnd)},
		{"atomics", "code", "unknown instruction 0xfe", bodyOf(0, 0xfe, 0, opEnd)},
		{"unknown after 0xfc", "code", "0xfc 0x12", bodyOf(0, 0xfc, 18, opEnd)},
		{"unknown after 0xfd", "code", "0xfd 0x9a", bodyOf(0, 0xfd, 0x9a, 1, opEnd)},
		{"relaxed SIMD", "code", "0xfd 0x100", bodyOf(0, 0xfd, 0x80, 2, opEnd)},
		{"padded sub-opcode", "code", "0xfd 0xc", bodyOf(append([]byte{0, 0xfd, 0x8c, 0}, append(make([]byte, 16), opDrop, opEnd)...)...)},
		{"padded bulk sub-opcode", "code", "0xfc 0xb", bodyOf(0, 0xfc, 0x8b, 0, 0, opEnd)},
		{"no end", "code", "too early", bodyOf(0, opNop)},
		{"code after the end", "code", "left over", bodyOf(0, opEnd, opEnd)},
		{"else alone", "code", "else without if", bodyOf(0, opElse, opEnd)},
		{"else twice", "code", "else without if", bodyOf(0, opI32Const, 0, opIf, blockEmpty, opElse, opElse, opEnd, opEnd)},
		{"else for a block", "code", "else without if", bodyOf(0, opBlock, blockEmpty, opElse, opEnd, opEnd)},
		{"label", "code", "label index 1 of 1", bodyOf(0, opBr, 1, opEnd)},
		{"label of br_table", "code", "label index", bodyOf(0, opI32Const, 0, opBrTable, 1, 1, 0, opEnd)},
		{"default of br_table", "code", "label index", bodyOf(0, opI32Const, 0, opBrTable, 0, 1, opEnd)},
		{"huge br_table", "code", "vector of", bodyOf(0, opBrTable, 0xff, 0xff, 3, 0, opEnd)},
		{"local", "code", "local index 0 of 0", bodyOf(0, opLocalGet, 0, opDrop, opEnd)},
		{"global", "code", "global index 0 of 0", bodyOf(0, opGlobalGet, 0, opDrop, opEnd)},
		{"call", "code", "function index 1 of 1", bodyOf(0, opCall, 1, opEnd)},
		{"ref.func", "code", "function index", bodyOf(0, opRefFunc, 1, opDrop, opEnd)},
		{"type of call_indirect", "code", "type index", bodyOf(0, opI32Const, 0, opCallIndirect, 1, 0, opEnd)},
		{"table of call_indirect", "code", "table index", bodyOf(0, opI32Const, 0, opCallIndirect, 0, 0, opEnd)},
		{"type of a block", "code", "type index", bodyOf(0, opBlock, 1, opEnd, opEnd)},
		{"block type", "code", "block type", bodyOf(0, opBlock, 0x41, opEnd, opEnd)},
		{"padded block type", "code", "block type", bodyOf(0, opBlock, 0xc0, 0x7f, opEnd, opEnd)},
		{"memory.init uncounted", "code", "data count", bodyOf(0, 0xfc, 8, 0, 0, opEnd)},
		{"data.drop uncounted", "code", "data count", bodyOf(0, 0xfc, 9, 0, opEnd)},
		{"second memory", "code", "memory index", bodyOf(0, opMemorySize, 1, opDrop, opEnd)},
		{"access to a second memory", "code", "alignment", bodyOf(0, opI32Const, 0, 0x28, 0x42, 1, 0, opDrop, opEnd)},
		{"too many locals", "code", "50000 locals", bodyOf(1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f, opEnd)},
		{"too many locals in groups", "code", "50000 locals", bodyOf(2, 0xc0, 0xb8, 2, 0x7f, 0xc0, 0xb8, 2, 0x7f, opEnd)},
	} {
		info, err := Inspect(x.wasm)
		var e *Error
		if !errors.As(err, &e) || info != nil {
			t.Errorf("%s: %+v, %v", x.name, info, err)
			continue
		}
		if e.Section != x.section || !strings.Contains(e.Reason, x.reason) {
			t.Errorf("%s: %v; want %q in %s", x.name, e, x.reason, x.section)
		}
		if inBody := e.Section == "code" && !strings.Contains(e.Reason, "bodies"); (e.Func == 0) != inBody {
			t.Errorf("%s: function %d", x.name, e.Func)
		}
		if _, _, err := Rewrite(x.wasm, testOptions); !errors.As(err, &e) {
			t.Errorf("%s: Rewrite: %v", x.name, err)
		}
	}
}

func TestErrorNamesFunctionAndOffset(t *testing.T) {
	var a asm
	a.importFunc("env", "note", types(I32), types(I32))
	a.fn("", nil, nil, nil, op(opNop))
	a.fn("", nil, nil, nil, op(opNop, 0x27))
	wasm := a.bytes()
	_, err := Inspect(wasm)
	var e *Error
	if !errors.As(err, &e) || e.Func != 2 || wasm[e.Offset] != 0x27 {
		t.Errorf("%#v", err)
	}
}

// Nesting is bounded, and a body that only nests takes no stack of ours.
func TestNesting(t *testing.T) {
	for depth, ok := range map[int]bool{maxNesting: true, maxNesting + 1: false, 2_000_000: false} {
		var a asm
		a.fn("", nil, nil, nil, slices.Repeat(op(opBlock, blockEmpty), depth), slices.Repeat(op(opEnd), depth))
		if _, err := Inspect(a.bytes()); (err == nil) != ok {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
}

func TestSize(t *testing.T) {
	if _, err := Inspect(make([]byte, MaxSize+1)); err == nil {
		t.Error("too large a module is read")
	}
}

// What was cut anywhere is refused, never read beyond its end.
func TestTruncated(t *testing.T) {
	for _, p := range programs() {
		for n := range len(p.wasm) {
			_, err := Inspect(p.wasm[:n:n])
			var e *Error
			if err != nil && !errors.As(err, &e) {
				t.Fatalf("%s cut at %d: %v", p.name, n, err)
			}
		}
	}
}

func TestLEB128(t *testing.T) {
	for _, v := range []int64{0, 1, -1, 63, 64, -64, -65, 1<<31 - 1, -1 << 31, 1<<63 - 1, -1 << 63} {
		b := appendS64(nil, v)
		r := reader{b: b}
		if got := r.signed(64); got != v || r.err != nil || r.left() != 0 {
			t.Errorf("%d: %d %v", v, got, r.err)
		}
		r = reader{b: b}
		got := r.signed(32)
		if fits := v == int64(int32(v)); (r.err == nil) != fits || fits && got != v {
			t.Errorf("%d in 32 bits: %d %v", v, got, r.err)
		}
	}
	for _, v := range []uint32{0, 127, 128, 1<<32 - 1} {
		r := reader{b: appendU32(nil, v)}
		if got := r.u32(); got != v || r.err != nil {
			t.Errorf("%d: %d %v", v, got, r.err)
		}
	}
	for _, bad := range [][]byte{
		bytes.Repeat([]byte{0x80}, 11),
		{0xff, 0xff, 0xff, 0xff, 0x4f},
		{0x80, 0x80, 0x80, 0x80, 0x70},
	} {
		r := reader{b: bad}
		if r.signed(32); r.err == nil {
			t.Errorf("%x is read in 32 bits", bad)
		}
	}
}

// Bodies made to cost much more than their size: deep nests with branches over
// all of them, long tables, loop after loop.
func TestHostileBodies(t *testing.T) {
	const depth = maxNesting - 1
	table := append(appendU32(op(opBrTable), 60000), slices.Repeat(op(0), 60001)...)
	far := slices.Concat(i32(0), brIf(depth-1))
	for name, code := range map[string][]byte{
		"branches over a deep nest": slices.Concat(
			slices.Repeat(op(opLoop, blockEmpty), depth), slices.Repeat(far, 200_000), slices.Repeat(op(opEnd), depth)),
		"tables":        slices.Concat(op(opLoop, blockEmpty), slices.Repeat(slices.Concat(op(opBlock, blockEmpty), i32(0), table, op(opEnd)), 16), op(opEnd)),
		"many loops":    slices.Repeat(op(opLoop, blockEmpty, opI32Const, 0, opBrIf, 0, opEnd), 140_000),
		"many branches": slices.Concat(op(opLoop, blockEmpty), slices.Repeat(slices.Concat(i32(0), brIf(0)), 250_000), op(opEnd)),
	} {
		var a asm
		a.fn("", nil, nil, nil, code)
		wasm := a.bytes()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		out, _, err := Rewrite(wasm, testOptions)
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 400*uint64(len(wasm))+1<<20 {
			t.Errorf("%s: %d bytes allocated for %d of input", name, allocated, len(wasm))
		}
		// Work that grows with the square of the input would take hours.
		if took > 30*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
		t.Logf("%s: %d bytes in, %d out, %d allocated, %v", name, len(wasm), len(out), after.TotalAlloc-before.TotalAlloc, took)
	}
}
