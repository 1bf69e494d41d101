package wasmbin

// memory.fill and memory.copy of much are done in pieces, with a call to the
// host between two: one instruction could keep the processor for as long as a
// gigabyte takes, and nothing stops compiled code in the middle of one. Pieces are
// moved by a function of ours for each of the two, which is not metered: who
// calls it has paid for the whole.

// piece is what is moved at once, in bytes: less than a millisecond of work, also
// where each page of it is touched for the first time.
const piece = 1 << 20

// mover tells which function an instruction has, if it has one.
func mover(sub uint32) (i int, ok bool) {
	switch sub {
	case fcMemoryFill:
		return 0, true
	case fcMemoryCopy:
		return 1, true
	}
	return 0, false
}

// planPieces decides which functions are added, and of what type they are.
func (a *assembler) planPieces() {
	if !a.o.Meter || !a.moves[0] && !a.moves[1] {
		return
	}
	a.moveType = uint32(len(a.types))
	if int(a.oofType) == len(a.types) {
		a.moveType++
	}
	for i, t := range a.types {
		if len(t.Results) == 0 && len(t.Params) == 3 && t.Params[0] == I32 && t.Params[1] == I32 && t.Params[2] == I32 {
			a.moveType = uint32(i)
			break
		}
	}
	next := a.shift(uint32(len(a.funcs)))
	if a.dispatch != nil {
		next++
	}
	for i := range a.moves {
		if a.moves[i] {
			a.movers[i] = next
			next++
			a.added++
		}
	}
}

// newMoveType tells whether the module has no such type of its own.
func (a *assembler) newMoveType() bool { return a.added > 0 && int(a.moveType) >= len(a.types) }

// moverBodies are the functions, each with its size.
func (a *assembler) moverBodies() (out []byte) {
	oof := uint32(a.info.ImportedFunctions)
	if a.added == 0 {
		return nil
	}
	if a.moves[0] {
		out = appendVec(out, moverBody(oof, fillPiece))
	}
	if a.moves[1] {
		out = appendVec(out, moverBody(oof, copyPiece))
	}
	return out
}

// Locals of a mover: its parameters.
const (
	moveTo   = iota
	moveFrom // or the byte to fill with
	moveSize
)

// moverBody is a mover's body:
//
//	if what is moved is not inside the memory: move all of it, which traps
//	loop: move a piece; call the host; again while more than a piece is left
//	move the rest
func moverBody(oof uint32, p pieces) []byte {
	b := []byte{0} // no locals
	outside := func(local byte) []byte {
		return append(p64(local), append(append(p64(moveSize), opI64Add, opMemorySize, 0, opI64ExtendU, opI64Const, 16, opI64Shl), opI64GtU)...)
	}
	b = append(b, outside(moveTo)...)
	if p.copies {
		b = append(append(b, outside(moveFrom)...), opI32Or)
	}
	b = append(append(append(b, opIf, blockEmpty), p.all()...), opReturn, opEnd)
	if p.copies {
		// Where the parts may overlap, the end comes first if it moves up.
		b = append(b, opLocalGet, moveTo, opLocalGet, moveFrom, opI32GtU, opIf, blockEmpty)
		b = append(b, opLoop, blockEmpty)
		b = append(b, subtractPiece()...)
		b = append(b, opLocalGet, moveTo, opLocalGet, moveSize, opI32Add, opLocalGet, moveFrom, opLocalGet, moveSize, opI32Add)
		b = append(append(b, pieceConst()...), p.instr...)
		b = append(append(b, again(oof)...), opEnd)
		b = append(append(b, p.all()...), opReturn, opEnd)
	}
	b = append(b, opLoop, blockEmpty, opLocalGet, moveTo, opLocalGet, moveFrom)
	b = append(append(b, pieceConst()...), p.instr...)
	b = append(b, addPiece(moveTo)...)
	if p.copies {
		b = append(b, addPiece(moveFrom)...)
	}
	b = append(b, subtractPiece()...)
	b = append(append(b, again(oof)...), opEnd)
	return append(append(b, p.all()...), opEnd)
}

// A pieces is an instruction that is done in pieces.
type pieces struct {
	instr  []byte
	copies bool
}

var (
	fillPiece = pieces{[]byte{opPrefixFC, fcMemoryFill, 0}, false}
	copyPiece = pieces{[]byte{opPrefixFC, fcMemoryCopy, 0, 0}, true}
)

// all does the instruction for what is left.
func (p *pieces) all() []byte {
	return append([]byte{opLocalGet, moveTo, opLocalGet, moveFrom, opLocalGet, moveSize}, p.instr...)
}

// p64 is a local as an i64.
func p64(local byte) []byte { return []byte{opLocalGet, local, opI64ExtendU} }

func pieceConst() []byte { return appendS64([]byte{opI32Const}, piece) }

func addPiece(local byte) []byte {
	return append(append([]byte{opLocalGet, local}, pieceConst()...), opI32Add, opLocalSet, local)
}

func subtractPiece() []byte {
	return append(append([]byte{opLocalGet, moveSize}, pieceConst()...), opI32Sub, opLocalSet, moveSize)
}

// again calls the host, and goes on if more than a piece is left.
func again(oof uint32) []byte {
	b := append(appendU32([]byte{opCall}, oof), opLocalGet, moveSize)
	return append(append(b, pieceConst()...), opI32GtU, opBrIf, 0)
}

// inPieces does the instruction whose operands are on the stack, the length also in
// a local: by its mover if that is much.
func (e *emitter) inPieces(p *patch, held bool) {
	instr := e.m.wasm[p.pos : p.pos+p.skip]
	e.op(opLocalGet, e.operand)
	e.out = append(append(e.out, pieceConst()...), opI32GtU, opIf)
	e.out = appendS64(e.out, int64(e.moveType))
	if held {
		e.release()
	}
	e.op(opCall, e.movers[p.mover])
	if held {
		e.take()
	}
	e.out = append(append(append(e.out, opElse), instr...), opEnd)
}
