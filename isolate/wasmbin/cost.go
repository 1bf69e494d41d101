package wasmbin

// Costs are in units of about one simple instruction of compiled code; see the
// package comment for what a unit takes. Changing them changes the fuel that a
// recorded run used.
const (
	// costCall covers the call itself and a function of at most tinyLeaf.
	costCall         = 12
	costCallIndirect = 16
	costImport       = 200 // leaving compiled code and coming back
	costDivide       = 8
	costGrow         = 600 // growing, as calling an import, leaves compiled code
	costBulk         = 20  // starting one, whatever its length

	// tinyLeaf: functions that call nothing, do not loop and cost no more are
	// not metered: costCall has paid for them.
	tinyLeaf = 12
	// minSegment: a straight-line part of a function that costs at least this
	// is charged where it stands, when it runs; smaller ones count towards the
	// longest path from the head of their region.
	minSegment = 64
	// maxPath: in functions that call, a path longer than this is charged in
	// between, and checked.
	maxPath = 256
	// maxLeaf: functions that call nothing are checked if their code costs more
	// than this together.
	maxLeaf = 4096

	// A frame of compiled code, in bytes: what it has anyway, for each local (a
	// vector has 16), and what it may spill of a body of so many bytes.
	frameBase  = 64
	frameLocal = 16
	frameCode  = 4

	bulkShift   = 3    // memory.fill, copy, init: one unit for 8 bytes
	costPage    = 8192 // memory.grow: one page, zeroed
	costElement = 1    // table.*: one element
)

// cost of an instruction beside what it charges by length.
func (m *module) cost(in *instr) int64 {
	switch in.op {
	case opNop, opBlock, opLoop, opElse, opEnd, opDrop:
		return 0
	case opCall:
		if int(in.index) < m.info.ImportedFunctions {
			return costImport
		}
		return costCall
	case opCallIndirect:
		return costCallIndirect
	case opMemoryGrow:
		return costGrow
	case 0x6d, 0x6e, 0x6f, 0x70, 0x7f, 0x80, 0x81, 0x82, // integer division
		0x91, 0x95, 0x9f, 0xa3: // float square root and division
		return costDivide
	case opPrefixFC:
		switch in.sub {
		case fcTableGrow:
			return costGrow
		case fcTableSize:
			return 1
		}
		if in.sub >= fcMemoryInit {
			return costBulk
		}
		return 2 // saturating conversions
	case opPrefixFD:
		switch in.sub {
		case 0xe3, 0xe7, 0xef, 0xf3: // square root and division
			return costDivide
		}
		return 1
	}
	return 1
}
