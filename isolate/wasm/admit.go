package wasm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sandboxd/isolate/wasi"
	"sandboxd/isolate/wasmbin"
)

// MaxSize is the largest module, in bytes.
const MaxSize = 16 << 20

// limits are what is admitted. The compiler's time and memory are bounded by
// who runs it; these keep honest mistakes and most bombs from ever reaching it.
func limits() wasmbin.Limits {
	l := wasmbin.DefaultLimits()
	l.Size, l.MemoryMin = MaxSize, 65536 // a run's own limit is lower
	// The Go compiler nests a block for each place at which a goroutine may
	// wait: 500 in each program, 1200 in large ones.
	l.Nesting = 2500
	// And it leaves zeros out of the data: 50,000 segments in a program of 4 MB.
	l.DataSegments = 1 << 17
	l.Imports = map[string]bool{}
	for name := range imports {
		l.Imports[name] = true
	}
	return l
}

// imports are the signatures of all functions that a module may import, by
// "module.name".
var imports = func() map[string]wasmbin.FuncType {
	all := map[string]wasmbin.FuncType{}
	add := func(module, name, params string, void bool) {
		var t wasmbin.FuncType
		for _, p := range params {
			if p == 'l' {
				t.Params = append(t.Params, wasmbin.I64)
			} else {
				t.Params = append(t.Params, wasmbin.I32)
			}
		}
		if !void {
			t.Results = []wasmbin.ValueType{wasmbin.I32}
		}
		all[module+"."+name] = t
	}
	for _, f := range wasi.Functions {
		add(wasi.Module, f.Name, f.Params, f.Void)
	}
	for _, f := range functions {
		add(hostModule, f.name, f.params, f.void)
	}
	return all
}()

// A RejectedError says why a module is not admitted. Names in it are from the
// module: quoted and cut, and hostile all the same.
type RejectedError struct {
	Message, Hint string
	// Limit, Used and Allowed are set where a limit is exceeded.
	Limit, Used, Allowed string
}

func (e *RejectedError) Error() string { return e.Message }

// admit checks a module before it is compiled. The error is *RejectedError.
func admit(wasm []byte) (*wasmbin.Info, error) {
	if len(wasm) > MaxSize {
		return nil, &RejectedError{Message: fmt.Sprintf("the module has %d bytes", len(wasm)), Limit: "size", Used: fmt.Sprint(len(wasm)), Allowed: fmt.Sprint(MaxSize)}
	}
	info, err := wasmbin.Inspect(wasm)
	if err != nil {
		return nil, malformed(wasm, err)
	}
	if err := admitImports(info); err != nil {
		return nil, err
	}
	if err := wasmbin.Admit(info, limits()); err != nil {
		return nil, exceeded(err)
	}
	if len(info.Memories) == 0 && len(info.Imports) > 0 {
		return nil, &RejectedError{Message: "the module imports functions that use its memory, and has none"}
	}
	return info, nil
}

// limitNames are what the limits are called, and what they count.
var limitNames = map[string]string{
	"Size": "the module's bytes", "CodeBytes": "bytes of code", "DataBytes": "bytes of data", "CustomBytes": "bytes of custom sections",
	"Types": "types", "Functions": "functions", "Globals": "globals", "Exports": "exports", "DataSegments": "data segments",
	"Elements": "element segments", "ElementEntries": "entries of element segments", "Tables": "tables", "TableMin": "table entries at the start",
	"MemoryMin": "pages of memory at the start", "Body": "bytes of one function", "Locals": "locals of one function",
	"Nesting": "nested blocks in one function", "Blocks": "blocks in one function", "BrTable": "targets of one br_table",
	"Product": "locals times blocks of one function", "Volume": "locals times loops times nesting of one function",
}

func exceeded(err error) error {
	var e *wasmbin.AdmissionError
	if !errors.As(err, &e) {
		return &RejectedError{Message: err.Error()}
	}
	name := limitNames[e.Limit]
	if name == "" {
		name = e.Limit
	}
	r := &RejectedError{Message: fmt.Sprintf("the module has too much to be compiled: %d %s, %d are allowed", e.Used, name, e.Allowed),
		Limit: name, Used: fmt.Sprint(e.Used), Allowed: fmt.Sprint(e.Allowed)}
	if e.Func != wasmbin.NoFunc {
		r.Message += fmt.Sprintf(" (function %d)", e.Func)
		r.Hint = "split the function, or compile with less inlining"
	}
	return r
}

// admitImports says no to everything that is not ours, by name and signature.
func admitImports(info *wasmbin.Info) error {
	for _, im := range info.Imports {
		name := im.Module + "." + im.Name
		want, known := imports[name]
		switch {
		case im.Kind != wasmbin.KindFunc:
			return &RejectedError{Message: fmt.Sprintf("the module imports the %s %.80q.%.80q; only functions can be imported", im.Kind, im.Module, im.Name),
				Hint: "link it with a memory and tables of its own"}
		case !known:
			return &RejectedError{Message: fmt.Sprintf("the module imports %.80q.%.80q, which there is not", im.Module, im.Name),
				Hint: "there are " + wasi.Module + " (WASI preview 1, all of it) and " + hostFunctions(), Allowed: wasi.Module + ".*, " + hostModule + ".*"}
		case !slices.Equal(want.Params, im.Func.Params) || !slices.Equal(want.Results, im.Func.Results):
			return &RejectedError{Message: fmt.Sprintf("the module imports %s as %s; it is %s", name, signature(im.Func), signature(want)), Allowed: signature(want)}
		}
	}
	return nil
}

func hostFunctions() string {
	var names []string
	for _, f := range functions {
		names = append(names, hostModule+"."+f.name)
	}
	return strings.Join(names, ", ")
}

func signature(t wasmbin.FuncType) string {
	return "(" + valueTypes(t.Params) + ") → (" + valueTypes(t.Results) + ")"
}

func valueTypes(ts []wasmbin.ValueType) string {
	var out []string
	for _, t := range ts[:min(len(ts), 12)] {
		out = append(out, t.String())
	}
	return strings.Join(out, " ")
}

// malformed explains why a binary cannot be read, and names the proposal that it
// uses if that is why.
func malformed(wasm []byte, err error) error {
	r := &RejectedError{Message: err.Error()}
	if len(wasm) >= 8 && string(wasm[:4]) == "\x00asm" && wasm[6] == 1 {
		r.Message, r.Hint = "this is a WebAssembly component, not a core module", "build for wasm32-wasip1 (WASI preview 1)"
		return r
	}
	if len(wasm) < 8 || string(wasm[:4]) != "\x00asm" {
		r.Message, r.Hint = "this is not a WebAssembly binary: it does not begin with \\0asm", "the text format has to be assembled; in JSON a module is base64"
		return r
	}
	if p := proposal(err); p != "" {
		r.Message += ": the proposal " + p + " is not supported"
		r.Hint = "compile for WebAssembly 2.0 without it"
	}
	return r
}

// proposals by what the decoder says of them, the first that fits.
var proposals = []struct{ section, reason, name string }{
	{"", "unknown instruction 0xfe", "threads"},
	{"memory", "unknown limit flags 0x2", "threads (shared memory)"},
	{"memory", "unknown limit flags 0x3", "threads (shared memory)"},
	{"memory", "unknown limit flags", "memory64"},
	{"import", "unknown limit flags 0x3", "threads (shared memory)"},
	{"", "memories: only one is known", "multi-memory"},
	{"", "only memory 0 is known", "multi-memory"},
	{"", "alignment 2^", "multi-memory"},
	{"header", "unknown section 13", "exception handling"},
	{"", "unknown instruction 0x12", "tail calls"},
	{"", "unknown instruction 0x13", "tail calls"},
	{"", "unknown instruction 0x14", "typed function references"},
	{"", "unknown instruction 0x15", "typed function references"},
	{"", "unknown instruction 0xd3", "garbage collection"},
	{"", "unknown instruction 0xd4", "typed function references"},
	{"", "unknown instruction 0xd5", "typed function references"},
	{"", "unknown instruction 0xd6", "typed function references"},
	{"", "unknown instruction 0xfb", "garbage collection"},
	{"", "unknown instruction 0xfd", "relaxed SIMD"},
	{"", "unknown instruction 0x6", "exception handling"},
	{"", "unknown instruction 0x7", "exception handling"},
	{"", "unknown instruction 0x8", "exception handling"},
	{"", "unknown instruction 0x9", "exception handling"},
	{"", "unknown instruction 0xa", "exception handling"},
	{"", "unknown instruction 0x18", "exception handling"},
	{"", "unknown instruction 0x19", "exception handling"},
	{"", "unknown instruction 0x1f", "exception handling"},
	{"type", "unknown type form", "garbage collection"},
	{"", "unknown value type 0x6", "typed function references"},
	{"", "unknown reference type", "typed function references"},
	{"", "constant expression of more than one", "extended constant expressions"},
}

func proposal(err error) string {
	var e *wasmbin.Error
	if !errors.As(err, &e) {
		return ""
	}
	for _, p := range proposals {
		// A number must not go on: 0x6 is not 0x60.
		if i := strings.Index(e.Reason, p.reason); i >= 0 && (p.section == "" || p.section == e.Section) {
			rest := e.Reason[i+len(p.reason):]
			hex := strings.Contains(p.reason, "0x") && !strings.HasSuffix(p.reason, "type 0x6") && rest != "" && strings.IndexByte("0123456789abcdef", rest[0]) >= 0
			if !hex {
				return p.name
			}
		}
	}
	return ""
}

const (
	commandEntry = "_start"
	reactorEntry = "run"
	initEntry    = "_initialize"
)

// entry finds the functions that a run calls, in their order.
func entry(info *wasmbin.Info) ([]string, error) {
	for _, name := range []string{commandEntry, reactorEntry, initEntry} {
		t, ok := info.ExportedFuncs[name]
		if ok && (len(t.Params) > 0 || len(t.Results) > 1 || len(t.Results) == 1 && (name != reactorEntry || t.Results[0] != wasmbin.I32)) {
			want := "() → ()"
			if name == reactorEntry {
				want += " or () → (i32)"
			}
			return nil, &RejectedError{Message: fmt.Sprintf("the exported function %s is %s; it has to be %s", name, signature(t), want), Allowed: want}
		}
	}
	if _, ok := info.ExportedFuncs[commandEntry]; ok {
		return []string{commandEntry}, nil
	}
	if _, ok := info.ExportedFuncs[reactorEntry]; ok {
		if _, ok := info.ExportedFuncs[initEntry]; ok {
			return []string{initEntry, reactorEntry}, nil
		}
		return []string{reactorEntry}, nil
	}
	have := "none"
	for i, name := range slices.Sorted(maps.Keys(info.ExportedFuncs)) {
		switch {
		case i == 0:
			have = fmt.Sprintf("%.40q", name)
		case i < 20:
			have += fmt.Sprintf(", %.40q", name)
		}
	}
	return nil, &RejectedError{Message: "the module exports neither _start nor run: there is nothing to call",
		Hint: "the functions that it exports: " + have + "; build a command, with main, or export run without parameters"}
}
