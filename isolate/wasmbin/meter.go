package wasmbin

// none marks an unreachable position.
const none = -1

// What a patch does.
const (
	patchCall   = iota // replaces a function index
	patchHead          // charges the function, and checks if it calls
	patchPart          // charges arg, without a check
	patchCheck         // charges arg, with a check
	patchBulk          // charges by the operand on the stack, before
	patchMove          // the same, and does it in pieces if it is much
	patchGrow          // charges by the operand, after, if it succeeded
	patchLeave         // a branch leaves region for region arg
	patchEnter         // region begins, before its loop
	patchClose         // region has ended, after its loop
	patchLabel         // replaces the label labels[arg]
	patchBrIf          // the same for a whole br_if, which may leave region
	patchBack          // a br to a loop, which charges
	patchBackIf        // a br_if to a loop, which charges if it is taken
	patchTable         // replaces the labels of br_table, from targets[arg]
	patchDown          // a call begins: takes the frame from the stack
	patchUp            // it has returned
)

// A patch is a change at a position of a body. Patches stand in the order of
// their positions.
type patch struct {
	pos    uint32
	skip   uint32 // bytes of the input that it replaces
	kind   byte
	region int32
	mover  int8 // patchMove: the function that does it in pieces
	arg    int64
}

// A region is a function or a loop, without the loops in it. A function is
// charged when it is entered, with its longest path. A loop is charged where
// it branches back, with the longest path to that place: a path that leaves it
// instead goes on in the parent.
type region struct {
	parent int32
	depth  int32
	calls  bool  // calls something, in it or below
	loops  bool  // something branches back to it
	params bool  // the loop takes operands
	block  span  // its block type
	frame  int32 // of the loop, counted from the function's
	before int64 // the paths in all parents when their loops were entered
	added  int32 // labels that the wrappings of it and its parents add
}

// A label is a branch's label and where it lands.
type label struct {
	index  uint32
	frame  int32 // counted from the function's
	region int32
	bare   bool  // it carries no operands
	cost   int64 // of the path to a branch back
}

// A target is one label of a br_table. In front of each table's stands one
// with their number.
type target struct {
	index  uint32
	region int32
}

// A frame is an open block.
type frame struct {
	op     byte
	bare   bool  // a branch to it carries no operands
	region int32 // that a branch to it lands in
	label  int64 // longest path over the branches to its end, or none
	atIf   int64 // path at the if, for its else
}

// A meter finds out where one function is charged and how much. It is reused
// between functions for its memory.
type meter struct {
	m       *module
	in      instr
	frames  []frame
	regions []region
	patches []patch
	labels  []label // of branches
	targets []target

	cur  int32 // region
	path int64 // longest path from the head of cur, without the open part
	cost int64 // longest path through the function
	bulk bool  // a length is charged somewhere

	// The open straight-line part: what its patch is to charge, and what has
	// come since the last call, whose own patch is called.
	part, since  int64
	open, called int
	head         bool // it always runs when the function is entered
	split        bool // it began after a call

	calls bool // the function calls something
	stack bool // calls are to take their frames from the stack
}

// analyse fills regions and patches for the expression at r, which walk has
// found well-formed. bare says that the function returns nothing, calls that
// it calls something.
func (a *meter) analyse(r *reader, bare, calls bool) {
	a.regions = append(a.regions[:0], region{parent: none})
	a.frames = append(a.frames[:0], frame{op: opBlock, bare: bare, label: none})
	a.patches, a.labels, a.targets = a.patches[:0], a.labels[:0], a.targets[:0]
	a.cur, a.path, a.bulk, a.calls = 0, 0, false, calls
	a.patch(patch{pos: uint32(r.pos), kind: patchHead})
	a.begin(r.pos, true)
	for len(a.frames) > 0 {
		r.next(&a.in)
		if r.err != nil {
			return
		}
		a.step()
	}
}

func (a *meter) patch(p patch) {
	p.region = a.cur
	a.patches = append(a.patches, p)
}

// begin opens a straight-line part at pos.
func (a *meter) begin(pos int, head bool) {
	a.part, a.since, a.open, a.called = 0, 0, len(a.patches), none
	a.head, a.split = head, false
	if !head && a.path != none {
		a.patch(patch{pos: uint32(pos), kind: patchPart})
	}
}

// close ends the open part: a large one is charged where it began, a small one
// lengthens the path.
func (a *meter) close() {
	if a.path == none {
		return
	}
	a.endStretch()
	a.pay()
	a.part, a.called, a.split = 0, none, false
}

func (a *meter) pay() {
	if a.split || !a.head && a.part >= minSegment {
		a.patches[a.open].arg = a.part
	} else {
		a.path += a.part
	}
}

// endStretch adds what has come since the last call to the part, or makes it a
// part of its own if the part becomes long. See settle for the reason.
func (a *meter) endStretch() {
	if a.called != none && a.part+a.since > maxPath {
		a.pay()
		a.open, a.split, a.part = a.called, true, 0
	}
	a.part, a.since = a.part+a.since, 0
}

// settle charges, with a check, a path that has become long, at pos. A function
// that calls itself and then works would otherwise do all that work unchecked
// in one go, as its many calls return, however early it was paid.
func (a *meter) settle(pos int) {
	if a.calls && a.path > maxPath {
		a.patch(patch{pos: uint32(pos), kind: patchCheck, arg: a.path})
		a.path = 0
	}
}

func (a *meter) step() {
	in := &a.in
	live := a.path != none
	if live {
		a.since += a.m.cost(in)
	}
	switch in.op {
	case opBlock:
		a.push(in.op)
	case opLoop:
		a.enterLoop()
	case opIf:
		a.close()
		a.settle(in.pos)
		a.push(in.op)
		a.frames[len(a.frames)-1].atIf = a.path
		a.begin(in.end, false)
	case opElse:
		a.close()
		f := &a.frames[len(a.frames)-1]
		f.label = max(f.label, a.path)
		f.op, a.path = opElse, f.atIf
		a.begin(in.end, false)
	case opEnd:
		a.end()
	case opBr:
		a.br()
		a.path = none
	case opBrIf:
		a.brIf()
		a.begin(in.end, false)
	case opBrTable:
		a.brTable()
	case opReturn:
		a.close()
		a.branch(uint32(len(a.frames) - 1))
		a.leave(uint32(len(a.frames) - 1))
		a.path = none
	case opUnreachable:
		a.close() // a trap ends the run, and its path need not be covered
		a.path = none
	case opCall, opCallIndirect, opRefFunc:
		a.call(live)
	default:
		if live {
			a.length()
		}
	}
}

func (a *meter) push(op byte) {
	a.frames = append(a.frames, frame{op: op, bare: a.bare(), region: a.cur, label: none})
}

// bare tells whether branches to the block that begins carry no operands.
func (a *meter) bare() bool {
	switch {
	case a.in.block == blockEmpty:
		return true
	case a.in.block != blockIndexed:
		return a.in.op == opLoop
	case a.in.op == opLoop:
		return len(a.m.types[a.in.index].Params) == 0
	}
	return len(a.m.types[a.in.index].Results) == 0
}

func (a *meter) call(live bool) {
	in := &a.in
	frames := a.stack && live && in.op != opRefFunc
	if frames {
		a.patch(patch{pos: uint32(in.pos), kind: patchDown})
	}
	if in.op != opCallIndirect {
		a.patch(patch{pos: uint32(in.imm), skip: uint32(in.end - in.imm), kind: patchCall, arg: int64(in.index)})
	}
	if frames {
		a.patch(patch{pos: uint32(in.end), kind: patchUp})
	}
	if !live || in.op == opRefFunc {
		return
	}
	a.regions[a.cur].calls = true
	a.endStretch()
	a.called = len(a.patches)
	a.patch(patch{pos: uint32(in.end), kind: patchPart})
}

// length charges what an instruction does by its operand.
func (a *meter) length() {
	kind, unit := byte(patchBulk), int64(0)
	switch {
	case a.in.op == opMemoryGrow:
		kind, unit = patchGrow, costPage
	case a.in.op != opPrefixFC:
		return
	case a.in.sub == fcTableGrow:
		kind, unit = patchGrow, costElement
	case a.in.sub == fcMemoryInit || a.in.sub == fcMemoryCopy || a.in.sub == fcMemoryFill:
	case a.in.sub == fcTableInit || a.in.sub == fcTableCopy || a.in.sub == fcTableFill:
		unit = costElement
	default:
		return
	}
	a.bulk = true
	p := patch{pos: uint32(a.in.pos), kind: kind, arg: unit}
	if i, ok := mover(a.in.sub); ok && kind == patchBulk {
		p.kind, p.mover = patchMove, int8(i)
	}
	if p.kind != patchBulk {
		p.skip = uint32(a.in.end - a.in.pos)
	}
	a.patch(p)
}

// enterLoop makes the loop a region of its own.
func (a *meter) enterLoop() {
	if a.path == none { // never runs: nothing to charge
		a.push(opBlock)
		return
	}
	a.close()
	a.settle(a.in.pos)
	a.regions = append(a.regions, region{
		parent: a.cur, depth: a.regions[a.cur].depth + 1,
		before: a.regions[a.cur].before + a.path,
		params: !a.bare(),
		block:  span{uint32(a.in.imm), uint32(a.in.end)},
		frame:  int32(len(a.frames)),
	})
	a.cur, a.path = int32(len(a.regions)-1), 0
	a.patch(patch{pos: uint32(a.in.pos), kind: patchEnter})
	a.push(opLoop)
	a.begin(a.in.end, false)
}

func (a *meter) end() {
	a.close()
	f := a.frames[len(a.frames)-1]
	a.frames = a.frames[:len(a.frames)-1]
	switch f.op {
	case opLoop:
		r := a.regions[a.cur]
		a.patch(patch{pos: uint32(a.in.end), kind: patchClose})
		if a.path != none {
			a.path += r.before - a.regions[r.parent].before
		}
		if r.calls {
			a.regions[r.parent].calls = true
		}
		a.cur = r.parent
	case opIf: // without else: not taken is a way through
		a.path = max(a.path, f.label, f.atIf)
	default:
		a.path = max(a.path, f.label)
	}
	if len(a.frames) == 0 {
		a.cost = max(a.path, 0)
		return
	}
	a.settle(a.in.end)
	a.begin(a.in.end, false)
}
