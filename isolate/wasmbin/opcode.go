package wasmbin

// Opcodes that the package names. The rest are known by their immediates only.
const (
	opUnreachable  = 0x00
	opNop          = 0x01
	opBlock        = 0x02
	opLoop         = 0x03
	opIf           = 0x04
	opElse         = 0x05
	opEnd          = 0x0b
	opBr           = 0x0c
	opBrIf         = 0x0d
	opBrTable      = 0x0e
	opReturn       = 0x0f
	opCall         = 0x10
	opCallIndirect = 0x11
	opDrop         = 0x1a
	opSelect       = 0x1b
	opSelectT      = 0x1c
	opLocalGet     = 0x20
	opLocalSet     = 0x21
	opLocalTee     = 0x22
	opGlobalGet    = 0x23
	opGlobalSet    = 0x24
	opTableGet     = 0x25
	opTableSet     = 0x26
	opMemorySize   = 0x3f
	opMemoryGrow   = 0x40
	opI32Const     = 0x41
	opI64Const     = 0x42
	opF32Const     = 0x43
	opF64Const     = 0x44
	opI32Ne        = 0x47
	opI32LtS       = 0x48
	opI32GtU       = 0x4b
	opI64LtS       = 0x53
	opI64GtU       = 0x56
	opI32Add       = 0x6a
	opI32Sub       = 0x6b
	opI32Or        = 0x72
	opI64Add       = 0x7c
	opI64Sub       = 0x7d
	opI64Mul       = 0x7e
	opI64Shl       = 0x86
	opI64ShrU      = 0x88
	opI64ExtendU   = 0xad
	opRefNull      = 0xd0
	opRefIsNull    = 0xd1
	opRefFunc      = 0xd2
	opPrefixFC     = 0xfc
	opPrefixFD     = 0xfd

	blockEmpty = 0x40
)

// Sub-opcodes after 0xfc.
const (
	fcMemoryInit = 8
	fcDataDrop   = 9
	fcMemoryCopy = 10
	fcMemoryFill = 11
	fcTableInit  = 12
	fcElemDrop   = 13
	fcTableCopy  = 14
	fcTableGrow  = 15
	fcTableSize  = 16
	fcTableFill  = 17
)

// imm is the shape of an instruction's immediates.
type imm byte

const (
	immBad imm = iota
	immNone
	immBlock        // block type
	immLabel        // label index
	immBrTable      // vector of labels and a default
	immFunc         // function index
	immCallIndirect // type index, table index
	immTypes        // vector of value types
	immLocal
	immGlobal
	immTable
	immMem // alignment, offset
	immZero
	immI32
	immI64
	imm4
	imm8
	imm16
	immLane
	immMemLane
	immRefType
	immDataZero // data index, memory 0
	immData
	immZeroZero
	immElemTable // element index, table index
	immElem
	immTableTable
)

// The tables below are the whole instruction set of Wasm 2.0; what they do not
// name is refused.
var (
	imms   = baseImms()
	fcImms = [...]imm{
		immNone, immNone, immNone, immNone, immNone, immNone, immNone, immNone,
		fcMemoryInit: immDataZero, fcDataDrop: immData,
		fcMemoryCopy: immZeroZero, fcMemoryFill: immZero,
		fcTableInit: immElemTable, fcElemDrop: immElem, fcTableCopy: immTableTable,
		fcTableGrow: immTable, fcTableSize: immTable, fcTableFill: immTable,
	}
	fdImms = simdImms()
)

func baseImms() (t [256]imm) {
	for op := 0x45; op <= 0xc4; op++ { // comparisons, arithmetic, conversions
		t[op] = immNone
	}
	for op := 0x28; op <= 0x3e; op++ { // loads and stores
		t[op] = immMem
	}
	for _, op := range []byte{
		opUnreachable, opNop, opElse, opEnd, opReturn, opDrop, opSelect, opRefIsNull,
	} {
		t[op] = immNone
	}
	t[opBlock], t[opLoop], t[opIf] = immBlock, immBlock, immBlock
	t[opBr], t[opBrIf], t[opBrTable] = immLabel, immLabel, immBrTable
	t[opCall], t[opCallIndirect], t[opRefFunc] = immFunc, immCallIndirect, immFunc
	t[opSelectT] = immTypes
	t[opLocalGet], t[opLocalSet], t[opLocalTee] = immLocal, immLocal, immLocal
	t[opGlobalGet], t[opGlobalSet] = immGlobal, immGlobal
	t[opTableGet], t[opTableSet] = immTable, immTable
	t[opMemorySize], t[opMemoryGrow] = immZero, immZero
	t[opI32Const], t[opI64Const], t[opF32Const], t[opF64Const] = immI32, immI64, imm4, imm8
	t[opRefNull] = immRefType
	return t
}

func simdImms() (t [256]imm) {
	for op := range t {
		switch {
		case op <= 11 || op == 92 || op == 93: // loads and the store
			t[op] = immMem
		case op == 12 || op == 13: // v128.const, i8x16.shuffle
			t[op] = imm16
		case op >= 21 && op <= 34: // extract and replace lane
			t[op] = immLane
		case op >= 84 && op <= 91: // load and store lane
			t[op] = immMemLane
		default:
			t[op] = immNone
		}
	}
	for _, op := range []byte{ // holes in the numbering
		0x9a, 0xa2, 0xa5, 0xa6, 0xaf, 0xb0, 0xb2, 0xb3, 0xb4, 0xbb,
		0xc2, 0xc5, 0xc6, 0xcf, 0xd0, 0xd2, 0xd3, 0xd4, 0xe2, 0xee,
	} {
		t[op] = immBad
	}
	return t
}

// An instr is one decoded instruction.
type instr struct {
	op  byte
	sub uint32 // after 0xfc or 0xfd
	// pos and end enclose it; imm is where its immediates begin.
	pos, imm, end int
	// index is the first index among the immediates, index2 the second.
	index, index2 uint32
	// block is the block type: blockEmpty, a ValueType or blockIndexed with
	// index naming a type.
	block byte
	// labels are br_table's targets, the default last. Reused by the next call.
	labels []uint32
}

const blockIndexed = 0

// next decodes the instruction at r.
func (r *reader) next(in *instr) {
	in.pos = r.pos
	in.op = r.byte()
	in.sub = 0
	shape := imms[in.op]
	switch in.op {
	case opPrefixFC:
		in.sub = r.u32()
		if int64(in.sub) < int64(len(fcImms)) {
			shape = fcImms[in.sub]
		}
	case opPrefixFD:
		in.sub = r.u32()
		if int64(in.sub) < int64(len(fdImms)) {
			shape = fdImms[in.sub]
		}
	}
	if r.err != nil {
		return
	}
	in.imm = r.pos
	// Engines differ in how they read a padded number here (wazero takes one
	// byte and meets the next as a nop), and what two readers understand
	// differently could escape the metering.
	if n := in.imm - in.pos - 1; n > 1 && (n > 2 || in.sub < 0x80) {
		shape = immBad
	}
	if shape == immBad {
		if in.op == opPrefixFC || in.op == opPrefixFD {
			r.failAt(in.pos, "unknown instruction %#x %#x", in.op, in.sub)
		} else {
			r.failAt(in.pos, "unknown instruction %#x", in.op)
		}
		return
	}
	r.immediates(in, shape)
	in.end = r.pos
}

func (r *reader) immediates(in *instr, shape imm) {
	switch shape {
	case immBlock:
		r.blockType(in)
	case immLabel, immFunc, immLocal, immGlobal, immTable, immData, immElem:
		in.index = r.u32()
	case immCallIndirect, immElemTable, immTableTable:
		in.index = r.u32()
		in.index2 = r.u32()
	case immDataZero:
		in.index = r.u32()
		r.zero()
	case immBrTable:
		r.brTable(in)
	case immTypes:
		for range r.count(1, maxValues) {
			r.valueType()
		}
	case immMem, immMemLane:
		r.memArg()
		if shape == immMemLane {
			r.skip(1)
		}
	case immZero:
		r.zero()
	case immZeroZero:
		r.zero()
		r.zero()
	case immI32:
		r.signed(32)
	case immI64:
		r.signed(64)
	case imm4:
		r.skip(4)
	case imm8:
		r.skip(8)
	case imm16:
		r.skip(16)
	case immLane:
		r.skip(1)
	case immRefType:
		r.refType()
	}
}

// zero reads the byte that stands for memory 0.
func (r *reader) zero() {
	if c := r.byte(); c != 0 {
		r.failAt(r.pos-1, "memory index %d: only memory 0 is known", c)
	}
}

func (r *reader) memArg() {
	start := r.pos
	// 2^4 is the widest access; higher bits belong to later proposals, which
	// add immediates.
	if align := r.u32(); align > 4 {
		r.failAt(start, "alignment 2^%d", align)
	}
	r.u32()
}

func (r *reader) brTable(in *instr) {
	n := r.count(1, maxBrTable)
	in.labels = in.labels[:0]
	for range n {
		in.labels = append(in.labels, r.u32())
		if r.err != nil {
			return
		}
	}
	in.labels = append(in.labels, r.u32())
}

func (r *reader) blockType(in *instr) {
	start := r.pos
	v := r.signed(33)
	if v >= 0 {
		in.block, in.index = blockIndexed, uint32(v)
		return
	}
	in.block = byte(v & 0x7f)
	if r.pos-start != 1 || in.block != blockEmpty && !valid(ValueType(in.block)) {
		r.failAt(start, "unknown block type")
	}
}

func valid(t ValueType) bool {
	switch t {
	case I32, I64, F32, F64, V128, FuncRef, ExternRef:
		return true
	}
	return false
}

func (r *reader) valueType() ValueType {
	t := ValueType(r.byte())
	if r.err == nil && !valid(t) {
		r.failAt(r.pos-1, "unknown value type %#x", byte(t))
	}
	return t
}

func (r *reader) refType() ValueType {
	t := ValueType(r.byte())
	if r.err == nil && t != FuncRef && t != ExternRef {
		r.failAt(r.pos-1, "unknown reference type %#x", byte(t))
	}
	return t
}
