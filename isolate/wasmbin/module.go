package wasmbin

import (
	"bytes"
)

// Section ids.
const (
	secCustom = iota
	secType
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
)

var sectionNames = [...]string{
	"custom", "type", "import", "function", "table", "memory", "global",
	"export", "start", "element", "code", "data", "data count",
}

// sectionOrder is the order in which sections may stand.
var sectionOrder = [...]int{
	secType, secImport, secFunction, secTable, secMemory, secGlobal, secExport,
	secStart, secElement, secDataCount, secCode, secData,
}

const (
	// MaxSize bounds the input; offsets fit in 32 bits because of it.
	MaxSize = 256 << 20
	// maxNesting bounds the stack of open blocks; locals are bounded because a
	// declaration of six bytes can ask for 2^32 of them.
	maxNesting = 20000
	maxLocals  = 50000
)

// A span is a part of the input.
type span struct{ pos, end uint32 }

// A ref is a function index somewhere in the input, to be shifted.
type ref struct {
	pos   uint32
	size  uint32
	index uint32
}

// A body is a function's body: span is its expression, decl its local
// declarations.
type body struct {
	decl, code span
	locals     uint32 // parameters and declared ones
}

// A segment is a data segment.
type segment struct {
	span
	passive bool
}

// A module is a decoded binary.
type module struct {
	wasm     []byte
	info     *Info
	types    []FuncType
	funcs    []uint32 // type index of each function, imports first
	sections [len(sectionNames)]span
	refs     []ref // in global, export and element sections, by position
	bodies   []body
	segments []segment

	importedTables, importedMemories, importedGlobals int

	dataCount  uint32
	hasCount   bool
	elements   uint32
	start      uint32
	moduleName []byte // raw subsections of the name section
	funcNames  span
}

var magic = []byte{0, 'a', 's', 'm', 1, 0, 0, 0}

func decode(wasm []byte) (*module, error) {
	m := &module{wasm: wasm, info: &Info{Size: len(wasm)}}
	r := reader{b: wasm, section: "header", fn: NoFunc}
	if len(wasm) > MaxSize {
		r.fail("%d bytes, more than %d", len(wasm), MaxSize)
		return nil, r.err
	}
	if !bytes.HasPrefix(wasm, magic) {
		r.fail("not a WebAssembly 1 binary")
		return nil, r.err
	}
	r.pos = len(magic)
	next := 0 // in sectionOrder
	for r.err == nil && r.left() > 0 {
		m.readSection(&r, &next)
	}
	if r.err == nil {
		m.checkWhole(&r)
	}
	if r.err != nil {
		return nil, r.err
	}
	return m, nil
}

func (m *module) readSection(r *reader, next *int) {
	r.section = "header"
	start := r.pos
	id := int(r.byte())
	n := r.u32()
	if r.err != nil {
		return
	}
	if id >= len(sectionNames) {
		r.failAt(start, "unknown section %d", id)
		return
	}
	s := r.sub(n, sectionNames[id])
	if id == secCustom {
		m.info.CustomBytes += int(n)
		m.readCustom(s)
		return
	}
	for *next < len(sectionOrder) && sectionOrder[*next] != id {
		*next++
	}
	if *next == len(sectionOrder) {
		r.failAt(start, "%s section twice or out of order", sectionNames[id])
		return
	}
	*next++
	if s.err == nil {
		m.sections[id] = span{uint32(s.pos), uint32(len(s.b))}
		m.readContent(id, &s)
		s.done()
	}
	if s.err != nil {
		r.err = s.err
	}
}

func (m *module) readContent(id int, r *reader) {
	switch id {
	case secType:
		m.readTypes(r)
	case secImport:
		m.readImports(r)
	case secFunction:
		m.readFunctions(r)
	case secTable:
		for range r.count(3) {
			m.info.Tables = append(m.info.Tables, r.table())
		}
	case secMemory:
		for range r.count(2) {
			m.info.Memories = append(m.info.Memories, r.memory())
		}
	case secGlobal:
		for range r.count(4) {
			m.readGlobal(r)
		}
	case secExport:
		m.readExports(r)
	case secStart:
		m.start = m.funcIndex(r)
		m.info.HasStart = true
	case secElement:
		m.readElements(r)
	case secDataCount:
		m.dataCount, m.hasCount = r.u32(), true
	case secCode:
		m.readCode(r)
	case secData:
		m.readData(r)
	}
}

// checkWhole checks what no single section can.
func (m *module) checkWhole(r *reader) {
	r.section = "code"
	if len(m.bodies) != m.info.Functions {
		r.fail("%d bodies for %d functions", len(m.bodies), m.info.Functions)
	}
	r.section = "data"
	if m.hasCount && int(m.dataCount) != len(m.segments) {
		r.fail("%d segments, %d announced", len(m.segments), m.dataCount)
	}
	if len(m.info.Memories) > 1 {
		r.section = "memory"
		r.fail("%d memories: only one is known", len(m.info.Memories))
	}
}

func (m *module) readTypes(r *reader) {
	n := r.count(3)
	m.info.Types = n
	for range n {
		if c := r.byte(); r.err == nil && c != 0x60 {
			r.failAt(r.pos-1, "unknown type form %#x", c)
		}
		if r.err != nil {
			return
		}
		m.types = append(m.types, FuncType{Params: r.valueTypes(), Results: r.valueTypes()})
	}
}

func (r *reader) valueTypes() []ValueType {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	ts := make([]ValueType, n)
	for i := range ts {
		ts[i] = r.valueType()
	}
	return ts
}

func (m *module) readImports(r *reader) {
	for range r.count(4) {
		im := Import{Module: r.name(), Name: r.name(), Kind: Kind(r.byte())}
		switch im.Kind {
		case KindFunc:
			t := m.typeIndex(r)
			if r.err != nil {
				return
			}
			im.Func = m.types[t]
			m.funcs = append(m.funcs, t)
			m.info.ImportedFunctions++
		case KindTable:
			im.Table = r.table()
			m.info.Tables = append(m.info.Tables, im.Table)
			m.importedTables++
		case KindMemory:
			im.Memory = r.memory()
			m.info.Memories = append(m.info.Memories, im.Memory)
			m.importedMemories++
		case KindGlobal:
			im.Global = r.global()
			m.info.Globals = append(m.info.Globals, im.Global)
			m.importedGlobals++
		default:
			r.failAt(r.pos-1, "unknown import kind %d", im.Kind)
		}
		if r.err != nil {
			return
		}
		m.info.Imports = append(m.info.Imports, im)
	}
}

func (m *module) readFunctions(r *reader) {
	n := r.count(1)
	for range n {
		m.funcs = append(m.funcs, m.typeIndex(r))
		if r.err != nil {
			return
		}
	}
	m.info.Functions = n
}

func (m *module) typeIndex(r *reader) uint32 {
	return r.index(len(m.types), "type")
}

// index reads an index below n.
func (r *reader) index(n int, what string) uint32 {
	start := r.pos
	i := r.u32()
	if r.err == nil && int64(i) >= int64(n) {
		r.failAt(start, "%s index %d of %d", what, i, n)
		return 0
	}
	return i
}

// funcIndex reads a function index.
func (m *module) funcIndex(r *reader) uint32 {
	return r.index(len(m.funcs), "function")
}

// funcRef reads a function index that a rewrite shifts in place.
func (m *module) funcRef(r *reader) uint32 {
	start := r.pos
	i := m.funcIndex(r)
	if r.err == nil {
		m.refs = append(m.refs, ref{uint32(start), uint32(r.pos - start), i})
	}
	return i
}

// limits reads minimum and maximum; flags beyond the known are refused.
func (r *reader) limits(known byte) (min, max uint32, flags byte) {
	start := r.pos
	flags = r.byte()
	if flags&^known != 0 {
		r.failAt(start, "unknown limit flags %#x", flags)
		return 0, 0, 0
	}
	min = r.u32()
	if flags&1 != 0 {
		max = r.u32()
		if r.err == nil && max < min {
			r.failAt(start, "maximum %d below minimum %d", max, min)
		}
	}
	return min, max, flags
}

func (r *reader) table() Table {
	t := Table{Type: r.refType()}
	var flags byte
	t.Min, t.Max, flags = r.limits(1)
	t.HasMax = flags&1 != 0
	return t
}

func (r *reader) memory() Memory {
	var m Memory
	var flags byte
	start := r.pos
	m.Min, m.Max, flags = r.limits(1)
	m.HasMax = flags&1 != 0
	if r.err == nil && (m.Min > 65536 || m.Max > 65536) {
		r.failAt(start, "more than 65536 pages")
	}
	return m
}

func (r *reader) global() Global {
	g := Global{Type: r.valueType()}
	c := r.byte()
	if r.err == nil && c > 1 {
		r.failAt(r.pos-1, "unknown mutability %d", c)
	}
	g.Mutable = c == 1
	return g
}

func (m *module) readGlobal(r *reader) {
	if r.err != nil {
		return
	}
	g := r.global()
	m.constExpr(r)
	m.info.Globals = append(m.info.Globals, g)
}

// constExpr reads a constant expression: one instruction and end.
func (m *module) constExpr(r *reader) {
	var in instr
	r.next(&in)
	if r.err != nil {
		return
	}
	switch {
	case in.op >= opI32Const && in.op <= opF64Const, in.op == opRefNull,
		in.op == opPrefixFD && in.sub == 12:
	case in.op == opRefFunc:
		if int64(in.index) >= int64(len(m.funcs)) {
			r.failAt(in.pos, "function index %d of %d", in.index, len(m.funcs))
		}
		m.refs = append(m.refs, ref{uint32(in.imm), uint32(in.end - in.imm), in.index})
	case in.op == opGlobalGet:
		if int64(in.index) >= int64(len(m.info.Globals)) {
			r.failAt(in.pos, "global index %d of %d", in.index, len(m.info.Globals))
		}
	default:
		r.failAt(in.pos, "not a constant expression")
	}
	if c := r.byte(); r.err == nil && c != opEnd {
		r.failAt(r.pos-1, "constant expression of more than one instruction")
	}
}

func (m *module) readExports(r *reader) {
	seen := map[string]bool{}
	for range r.count(3) {
		start := r.pos
		e := Export{Name: r.name(), Kind: Kind(r.byte())}
		if r.err != nil {
			return
		}
		if e.Kind == KindFunc {
			e.Index = m.funcRef(r)
		} else {
			e.Index = r.index(m.space(e.Kind), e.Kind.String())
		}
		if seen[e.Name] {
			r.failAt(start, "export %s twice", quote(e.Name))
		}
		if r.err != nil {
			return
		}
		seen[e.Name] = true
		m.info.Exports = append(m.info.Exports, e)
	}
}

// space is the size of the index space of kind; 0 if there is none.
func (m *module) space(k Kind) int {
	switch k {
	case KindFunc:
		return len(m.funcs)
	case KindTable:
		return len(m.info.Tables)
	case KindMemory:
		return len(m.info.Memories)
	case KindGlobal:
		return len(m.info.Globals)
	}
	return 0
}
