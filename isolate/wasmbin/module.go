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
	// The others bound what a small input can make this package keep. They lie
	// at or above what engines accept; Limits is for what is admitted.
	maxNesting  = 20_000
	maxLocals   = 50_000
	maxBody     = 8 << 20
	maxBrTable  = 1 << 16
	maxValues   = 1_000 // parameters, results
	maxTypes    = 1 << 17
	maxImports  = 1 << 16
	maxFuncs    = 1 << 20
	maxEntities = 1 << 17 // tables, globals, exports, segments
	maxEntries  = 1 << 22 // of element segments together
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
	calls      bool   // there is a call in it
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
	moves    [2]bool // memory.fill, memory.copy are used

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
		for range r.count(3, maxEntities) {
			m.info.Tables = append(m.info.Tables, r.table())
		}
	case secMemory:
		for range r.count(2, maxEntities) {
			m.info.Memories = append(m.info.Memories, r.memory())
		}
	case secGlobal:
		for range r.count(4, maxEntities) {
			m.readGlobal(r)
		}
	case secExport:
		m.readExports(r)
	case secStart:
		m.start = m.funcIndex(r)
		m.info.HasStart, m.info.Start = true, m.start
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
	if m.hasCount && int(m.dataCount) != m.info.DataSegments {
		r.fail("%d segments, %d announced", m.info.DataSegments, m.dataCount)
	}
	if len(m.info.Memories) > 1 {
		r.section = "memory"
		r.fail("%d memories: only one is known", len(m.info.Memories))
	}
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
