package wasmbin

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

func mustRewrite(t *testing.T, wasm []byte, o Options) ([]byte, *Info) {
	t.Helper()
	out, info, err := Rewrite(wasm, o)
	if err != nil {
		t.Fatal(err)
	}
	return out, info
}

func stateful() *asm {
	var a asm
	a.memory = &Memory{Min: 1, Max: 9, HasMax: true}
	a.globals = [][]byte{
		append([]byte{byte(I32), 1}, append(i32(5), opEnd)...),
		append([]byte{byte(I64), 0}, append(i64(6), opEnd)...),
		append([]byte{byte(I64), 1}, append(i64(7), opEnd)...),
	}
	a.data = []asmData{{offset: 8, bytes: []byte("hello")}}
	a.start = 1 + int(a.fn("", nil, nil, nil, i32(99), ix(opGlobalSet, 0)))
	a.fn("run", types(I32), types(I32), nil, ix(opGlobalGet, 0), i32(8), op(0x28, 2, 0), op(i32Add))
	a.exports = append(a.exports, Export{"memory", KindMemory, 0})
	return &a
}

func TestExportGlobals(t *testing.T) {
	for _, meterToo := range []bool{false, true} {
		o := Options{ExportGlobals: "state."}
		if meterToo {
			o = testOptions
			o.ExportGlobals = "state."
		}
		wasm, info := mustRewrite(t, stateful().bytes(), o)
		want := []ExportedGlobal{{"state.0", 0, I32}, {"state.2", 2, I64}}
		if !slices.Equal(info.ExportedGlobals, want) {
			t.Errorf("exported %v", info.ExportedGlobals)
		}
		h := newHost(t)
		m := h.instantiate(wasm)
		if got := m.ExportedGlobal("state.0").Get(); got != 99 {
			t.Errorf("state.0 = %d", got)
		}
		m.ExportedGlobal("state.2").(api.MutableGlobal).Set(70)
		if got := m.ExportedGlobal("state.2").Get(); got != 70 {
			t.Errorf("state.2 = %d", got)
		}
		if m.ExportedGlobal("state.1") != nil {
			t.Error("an immutable global is exported")
		}
	}
}

func TestDropStart(t *testing.T) {
	wasm, info := mustRewrite(t, stateful().bytes(), Options{DropStart: true, ExportGlobals: "g"})
	if !info.HasStart || info.DataBytes != 5 {
		t.Errorf("facts are not the input's: %+v", info)
	}
	h := newHost(t)
	m := h.instantiate(wasm)
	if b, _ := m.Memory().Read(8, 5); string(b) != "hello" {
		t.Errorf("memory holds %q", b)
	}
	if got := m.ExportedGlobal("g0").Get(); got != 5 {
		t.Errorf("start has run: %d", got)
	}
}

func TestMemoryAndTableLimits(t *testing.T) {
	a := stateful()
	a.tables = []Table{{Type: FuncRef, Min: 3}, {Type: FuncRef, Min: 50}, {Type: FuncRef, Min: 1, Max: 9, HasMax: true}}
	wasm, _ := mustRewrite(t, a.bytes(), Options{MemoryMin: 4, MemoryMax: 6, TableMax: 20})
	info, err := Inspect(wasm)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Memory{Min: 4, Max: 6, HasMax: true}); info.Memories[0] != want {
		t.Errorf("memory %+v", info.Memories[0])
	}
	want := []Table{
		{Type: FuncRef, Min: 3, Max: 20, HasMax: true},
		{Type: FuncRef, Min: 50, Max: 50, HasMax: true},
		{Type: FuncRef, Min: 1, Max: 9, HasMax: true},
	}
	if !slices.Equal(info.Tables, want) {
		t.Errorf("tables %+v", info.Tables)
	}
	newHost(t).instantiate(wasm)
}

func TestAddedExports(t *testing.T) {
	a := stateful()
	a.tables = []Table{{Type: FuncRef, Min: 3}}
	o := testOptions
	o.Exports = []Export{{"again", KindFunc, 1}, {"table", KindTable, 0}, {"g", KindGlobal, 2}}
	wasm, _ := mustRewrite(t, a.bytes(), o)
	h := newHost(t)
	m := h.instantiate(wasm)
	res, err := m.ExportedFunction("again").Call(h.ctx, 0)
	if err != nil || len(res) != 1 {
		t.Fatal(res, err)
	}
	info, err := Inspect(wasm)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(info.Exports, Export{"table", KindTable, 0}) {
		t.Errorf("exports %v", info.Exports)
	}
}

func TestOptionErrors(t *testing.T) {
	plain := stateful()
	var imports asm
	imports.importFunc("sandboxd", "out_of_fuel", nil, nil)
	var bare asm
	taken := stateful()
	taken.exports = append(taken.exports, Export{"sandboxd_fuel", KindMemory, 0}, Export{"g2", KindMemory, 0})
	for _, x := range []struct {
		name   string
		a      *asm
		o      Options
		option string
	}{
		{"no names", plain, Options{Meter: true}, "Meter"},
		{"fuel taken", taken, testOptions, "FuelExport"},
		{"prefix taken", taken, Options{ExportGlobals: "g"}, "Exports"},
		{"export taken", plain, Options{Exports: []Export{{"run", KindFunc, 0}}}, "Exports"},
		{"export twice", plain, Options{Exports: []Export{{"a", KindFunc, 0}, {"a", KindFunc, 1}}}, "Exports"},
		{"no such function", plain, Options{Exports: []Export{{"a", KindFunc, 2}}}, "Exports"},
		{"no such kind", plain, Options{Exports: []Export{{"a", 9, 0}}}, "Exports"},
		{"imports the host's function", &imports, testOptions, "OutOfFuelName"},
		{"less memory", stateful(), Options{MemoryMax: 1, MemoryMin: 2}, "MemoryMax"},
		{"no memory", &bare, Options{MemoryMin: 1}, "MemoryMin"},
	} {
		_, _, err := Rewrite(x.a.bytes(), x.o)
		var o *OptionError
		if !errors.As(err, &o) || o.Option != x.option {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

// Names of functions survive, shifted; other custom sections do not.
func TestNames(t *testing.T) {
	var a asm
	a.importFunc("env", "note", types(I32), types(I32))
	a.fn("run", types(I32), types(I32), nil, get(0), call(0), op(opUnreachable))
	funcs := appendU32(nil, 2)
	funcs = appendName(appendU32(funcs, 0), "the_import")
	funcs = appendName(appendU32(funcs, 1), "the_function")
	name := appendVec(append(appendName(nil, "name"), 0), appendName(nil, "the_module"))
	name = appendVec(append(name, 1), funcs)
	name = appendVec(append(name, 2), []byte{0}) // local names
	a.custom = [][]byte{name, append(appendName(nil, ".debug_info"), 1, 2, 3)}
	out := metered(t, a.bytes())
	if bytes.Contains(out, []byte("debug_info")) {
		t.Error("debug information is kept, whose offsets are wrong")
	}
	h := newHost(t)
	m := h.instantiate(out)
	_, err := m.ExportedFunction("run").Call(h.ctx, 1)
	if err == nil || !strings.Contains(err.Error(), "the_module.the_function") {
		t.Errorf("trace without names: %v", err)
	}
	for _, bad := range [][]byte{name[:len(name)-5], appendVec(append(appendName(nil, "name"), 1), []byte{9, 9})} {
		a.custom = [][]byte{bad}
		newHost(t).instantiate(metered(t, a.bytes()))
	}
}

func TestInspect(t *testing.T) {
	info, err := Inspect(bulkTables())
	if err != nil {
		t.Fatal(err)
	}
	if !info.GrowsTable || !info.MutatesTable || info.GrowsMemory || len(info.Tables) != 2 || info.Elements != 1 || info.ElementEntries != 2 {
		t.Errorf("%+v", info)
	}
	info, err = Inspect(deepLoops())
	if err != nil {
		t.Fatal(err)
	}
	want := Largest{Body: info.Largest.Body, Locals: Max{2, 0}, Nesting: Max{25, 0}, Blocks: Max{25, 0}, Product: Max{50, 0}, Volume: Max{2 * 24 * 25, 0}}
	if info.Largest != want {
		t.Errorf("%+v", info.Largest)
	}
	info, err = Inspect(bulkMemory())
	if err != nil || !info.InitsMemory || !info.DropsData || info.PassiveData != 1 || info.DataSegments != 2 {
		t.Errorf("%+v %v", info, err)
	}
	if info, err = Inspect(simd()); err != nil || !info.UsesSIMD {
		t.Errorf("%+v %v", info, err)
	}
	if info, err = Inspect(imports()); err != nil || len(info.Imports) != 1 || info.Imports[0].Name != "note" ||
		!slices.Equal(info.Imports[0].Func.Params, types(I32)) || info.ImportedFunctions != 1 {
		t.Errorf("%+v %v", info, err)
	}
}

// Imported tables, memories and globals come first in their index spaces and
// stay where they are.
func TestImportsOfEveryKind(t *testing.T) {
	var lib asm
	lib.memory = &Memory{Min: 1}
	lib.tables = []Table{{Type: FuncRef, Min: 2}}
	lib.globals = [][]byte{append([]byte{byte(I32), 1}, append(i32(40), opEnd)...)}
	lib.exports = []Export{{"m", KindMemory, 0}, {"t", KindTable, 0}, {"g", KindGlobal, 0}}
	h := newHost(t)
	if _, err := h.rt.InstantiateWithConfig(h.ctx, lib.bytes(), wazero.NewModuleConfig().WithName("lib")); err != nil {
		t.Fatal(err)
	}
	var a asm
	note := a.importFunc("env", "note", types(I32), types(I32))
	entry := func(name string, desc ...byte) []byte {
		return append(appendName(appendName(nil, "lib"), name), desc...)
	}
	a.imports = append(a.imports,
		entry("m", byte(KindMemory), 0, 1),
		entry("t", byte(KindTable), byte(FuncRef), 0, 2),
		entry("g", byte(KindGlobal), byte(I32), 1))
	a.types = append(a.types, FuncType{types(I32), types(I32)})
	run := uint32(1) // the only function import is note
	a.globals = [][]byte{append([]byte{byte(I32), 1}, append(i32(2), opEnd)...)}
	a.elems = [][]byte{funcElems(false, note, run)}
	a.fn("", types(I32), types(I32), nil,
		ix(opGlobalGet, 0), ix(opGlobalGet, 1), op(i32Add), get(0), op(i32Add),
		i32(0), append(ix(opCallIndirect, 0), 0))
	a.exports = []Export{{"run", KindFunc, run}}
	o := testOptions
	o.ExportGlobals = "g"
	wasm, info := mustRewrite(t, a.bytes(), o)
	if len(info.Memories) != 1 || len(info.Tables) != 1 || len(info.Globals) != 2 || len(info.ExportedGlobals) != 2 {
		t.Errorf("%+v", info)
	}
	m := h.instantiate(wasm)
	res, err := m.ExportedFunction("run").Call(h.ctx, 1)
	if err != nil || res[0] != 44 || h.used(m) <= 0 {
		t.Errorf("%v %v, used %d", res, err, h.used(m))
	}
	if _, _, err := Rewrite(a.bytes(), Options{MemoryMin: 2}); err == nil {
		t.Error("an imported memory is resized")
	}
}
