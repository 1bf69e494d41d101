package wasmbin

import "slices"

// A tiny assembler: enough to write test modules as Go values.

type asmFunc struct {
	typ    uint32
	locals []ValueType
	code   []byte
}

type asmData struct {
	passive bool
	offset  int32
	bytes   []byte
}

type asm struct {
	types   []FuncType
	imports [][]byte // whole entries, functions only
	funcs   []asmFunc
	tables  []Table
	memory  *Memory
	globals [][]byte // type, mutability, expression
	exports []Export
	start   int // function index + 1
	elems   [][]byte
	data    []asmData
	count   bool // write a data count section
	custom  [][]byte
}

func (a *asm) typ(params, results []ValueType) uint32 {
	for i, t := range a.types {
		if slices.Equal(t.Params, params) && slices.Equal(t.Results, results) {
			return uint32(i)
		}
	}
	a.types = append(a.types, FuncType{params, results})
	return uint32(len(a.types) - 1)
}

func (a *asm) importFunc(module, name string, params, results []ValueType) uint32 {
	e := append(appendName(appendName(nil, module), name), byte(KindFunc))
	a.imports = append(a.imports, appendU32(e, a.typ(params, results)))
	return uint32(len(a.imports) - 1)
}

// fn adds a function, exported if name is not empty; code lacks the final end.
func (a *asm) fn(name string, params, results, locals []ValueType, code ...[]byte) uint32 {
	body := append(slices.Concat(code...), opEnd)
	a.funcs = append(a.funcs, asmFunc{a.typ(params, results), locals, body})
	i := uint32(len(a.imports) + len(a.funcs) - 1)
	if name != "" {
		a.exports = append(a.exports, Export{name, KindFunc, i})
	}
	return i
}

func appendSection(b []byte, id byte, entries [][]byte) []byte {
	if len(entries) == 0 {
		return b
	}
	return appendVec(append(b, id), slices.Concat(append([][]byte{appendU32(nil, uint32(len(entries)))}, entries...)...))
}

func appendTypes(b []byte, ts []ValueType) []byte {
	b = appendU32(b, uint32(len(ts)))
	for _, t := range ts {
		b = append(b, byte(t))
	}
	return b
}

func (a *asm) bytes() []byte {
	b := slices.Clone(magic)
	var types, funcs, tables, exports, code, data [][]byte
	for _, t := range a.types {
		types = append(types, appendTypes(appendTypes([]byte{0x60}, t.Params), t.Results))
	}
	for _, f := range a.funcs {
		funcs = append(funcs, appendU32(nil, f.typ))
		body := appendU32(nil, uint32(len(f.locals)))
		for _, l := range f.locals {
			body = append(body, 1, byte(l))
		}
		code = append(code, appendVec(nil, append(body, f.code...)))
	}
	for _, t := range a.tables {
		tables = append(tables, appendLimits([]byte{byte(t.Type)}, t.Min, t.Max, t.HasMax))
	}
	for _, e := range a.exports {
		exports = append(exports, appendU32(append(appendName(nil, e.Name), byte(e.Kind)), e.Index))
	}
	for _, d := range a.data {
		e := []byte{1}
		if !d.passive {
			e = append(append([]byte{0}, i32(d.offset)...), opEnd)
		}
		data = append(data, appendVec(e, d.bytes))
	}
	b = appendSection(b, secType, types)
	b = appendSection(b, secImport, a.imports)
	b = appendSection(b, secFunction, funcs)
	b = appendSection(b, secTable, tables)
	if m := a.memory; m != nil {
		b = appendSection(b, secMemory, [][]byte{appendLimits(nil, m.Min, m.Max, m.HasMax)})
	}
	b = appendSection(b, secGlobal, a.globals)
	b = appendSection(b, secExport, exports)
	if a.start != 0 {
		b = appendVec(append(b, secStart), appendU32(nil, uint32(a.start-1)))
	}
	b = appendSection(b, secElement, a.elems)
	if a.count {
		b = appendVec(append(b, secDataCount), appendU32(nil, uint32(len(data))))
	}
	b = appendSection(b, secCode, code)
	b = appendSection(b, secData, data)
	for _, c := range a.custom {
		b = appendVec(append(b, secCustom), c)
	}
	return b
}

func types(ts ...ValueType) []ValueType { return ts }

func op(ops ...byte) []byte { return ops }

func ix(op byte, i uint32) []byte { return appendU32([]byte{op}, i) }

func i32(v int32) []byte { return appendS64([]byte{opI32Const}, int64(v)) }
func i64(v int64) []byte { return appendS64([]byte{opI64Const}, v) }

func get(i uint32) []byte  { return ix(opLocalGet, i) }
func set(i uint32) []byte  { return ix(opLocalSet, i) }
func tee(i uint32) []byte  { return ix(opLocalTee, i) }
func br(l uint32) []byte   { return ix(opBr, l) }
func brIf(l uint32) []byte { return ix(opBrIf, l) }
func call(f uint32) []byte { return ix(opCall, f) }

// fc is an instruction after the prefix 0xfc, with one-byte immediates.
func fc(sub byte, imms ...byte) []byte { return append([]byte{opPrefixFC, sub}, imms...) }

// blk is block, loop or if with its body and end; typ is blockEmpty or a
// ValueType.
func blk(op, typ byte, body ...[]byte) []byte {
	return append(append([]byte{op, typ}, slices.Concat(body...)...), opEnd)
}

// blkT is the same with a type index.
func blkT(op byte, typ uint32, body ...[]byte) []byte {
	return append(append(appendS64([]byte{op}, int64(typ)), slices.Concat(body...)...), opEnd)
}

const (
	i32Eqz  = 0x45
	i32Eq   = 0x46
	i32LtS  = 0x48
	i32LtU  = 0x49
	i32Add  = 0x6a
	i32Sub  = 0x6b
	i32Mul  = 0x6c
	i32And  = 0x71
	i32Xor  = 0x73
	i32ShrU = 0x76
	i32Rotl = 0x77
	i64Add  = 0x7c
	i64Mul  = 0x7e
	i64Xor  = 0x85
	i64Rotl = 0x89
)
