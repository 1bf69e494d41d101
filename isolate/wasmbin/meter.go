package wasmbin

// none marks an unreachable position.
const none = -1

// What a patch does.
const (
	patchCall  = iota // replaces a function index
	patchHead         // charges and checks region arg
	patchPart         // charges cost, without a check
	patchBulk         // charges by the operand on the stack, before
	patchGrow         // charges by the operand, after, if it succeeded
	patchLeave        // a branch leaves region for region arg
	patchEnter        // region begins, before its loop
)

// A patch is a change at a position of a body. Patches stand in the order of
// their positions.
type patch struct {
	pos    uint32
	skip   uint32 // bytes of the input that it replaces
	kind   byte
	region int32
	arg    int64
}

// A region is the part of a function that one head pays for: the function, or
// a loop without the loops in it.
type region struct {
	parent int32
	depth  int32
	calls  bool  // calls something, in it or below
	cost   int64 // of the longest path through its small parts
	before int64 // of the parent's path when the loop was entered
}

// A frame is an open block.
type frame struct {
	op      byte
	region  int32 // that a branch to it lands in
	label   int64 // longest path over the branches to its end, or none
	atIf    int64 // path at the if, for its else
	started int64 // path where the block began
}

// A meter finds out where one function is charged and how much. It is reused
// between functions for its memory.
type meter struct {
	m       *module
	in      instr
	frames  []frame
	regions []region
	patches []patch

	cur  int32 // region
	path int64 // longest path from the head of cur, without the open part
	part int64 // cost of the open straight-line part
	open int   // index of its patch
	head bool  // the open part always runs when the head does
	bulk bool  // a length is charged somewhere
}

// analyse fills regions and patches for the expression at r, which walk has
// found well-formed.
func (a *meter) analyse(r *reader) {
	a.regions = append(a.regions[:0], region{parent: none})
	a.frames = append(a.frames[:0], frame{op: opBlock, label: none})
	a.patches = a.patches[:0]
	a.cur, a.path, a.bulk = 0, 0, false
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
	if p.kind != patchHead && p.kind != patchEnter {
		p.region = a.cur
	}
	a.patches = append(a.patches, p)
}

// begin opens a straight-line part at pos.
func (a *meter) begin(pos int, head bool) {
	a.part, a.head, a.open = 0, head, len(a.patches)
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
	if !a.head && a.part >= minSegment {
		a.patches[a.open].arg = a.part
	} else {
		a.path += a.part
	}
	a.part = 0
}

// finish ends the path of region i: its head must cover it.
func (a *meter) finish(i int32, path int64) {
	if path != none {
		a.regions[i].cost = max(a.regions[i].cost, path)
	}
}

func (a *meter) step() {
	in := &a.in
	live := a.path != none
	if live {
		a.part += a.m.cost(in)
	}
	switch in.op {
	case opBlock:
		a.push(in.op)
	case opLoop:
		a.enterLoop()
	case opIf:
		a.close()
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
		a.close()
		a.branch(in.index)
		a.leave(in.index)
		a.path = none
	case opBrIf:
		a.close()
		a.branch(in.index)
		a.leave(in.index)
		a.begin(in.end, false)
	case opBrTable:
		a.brTable()
	case opReturn:
		a.close()
		a.branch(uint32(len(a.frames) - 1))
		a.leave(uint32(len(a.frames) - 1))
		a.path = none
	case opUnreachable:
		a.close()
		a.finishAll()
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
	a.frames = append(a.frames, frame{op: op, region: a.cur, label: none, started: a.path})
}

func (a *meter) call(live bool) {
	in := &a.in
	if in.op != opCallIndirect {
		a.patch(patch{pos: uint32(in.imm), skip: uint32(in.end - in.imm), kind: patchCall, arg: int64(in.index)})
	}
	if live && in.op != opRefFunc {
		a.regions[a.cur].calls = true
	}
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
	if kind == patchGrow {
		p.skip = uint32(a.in.end - a.in.pos)
	}
	a.patch(p)
}

// enterLoop makes the loop a region of its own. Its parent's path goes on
// after it as if the loop cost nothing: its head pays.
func (a *meter) enterLoop() {
	if a.path == none { // never runs: nothing to charge
		a.push(opBlock)
		return
	}
	a.close()
	i := int32(len(a.regions))
	a.regions = append(a.regions, region{
		parent: a.cur, depth: a.regions[a.cur].depth + 1, before: a.path,
	})
	a.patch(patch{pos: uint32(a.in.pos), kind: patchEnter, region: i})
	a.cur, a.path = i, 0
	a.push(opLoop)
	a.patch(patch{pos: uint32(a.in.end), kind: patchHead, region: i})
	a.begin(a.in.end, true)
}

func (a *meter) end() {
	a.close()
	f := a.frames[len(a.frames)-1]
	a.frames = a.frames[:len(a.frames)-1]
	switch f.op {
	case opLoop:
		a.finish(a.cur, a.path)
		r := a.regions[a.cur]
		if a.path != none {
			a.patch(patch{pos: uint32(a.in.end), kind: patchLeave, arg: int64(r.parent)})
			a.path = r.before
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
		a.finish(0, a.path)
		return
	}
	a.begin(a.in.end, false)
}

// branch takes the path to label l. Every region on the way ends there; where
// the branch lands, the path goes on from where the loop had been entered.
func (a *meter) branch(l uint32) {
	if a.path == none {
		return
	}
	f := &a.frames[len(a.frames)-1-int(l)]
	path := a.path
	for i := a.cur; i != f.region; i = a.regions[i].parent {
		a.finish(i, path)
		path = a.regions[i].before
	}
	if f.op == opLoop {
		a.finish(f.region, path)
		return
	}
	f.label = max(f.label, path)
}

// finishAll ends the path of every open region.
func (a *meter) finishAll() {
	path := a.path
	for i := a.cur; path != none; i = a.regions[i].parent {
		a.finish(i, path)
		if i == 0 {
			return
		}
		path = a.regions[i].before
	}
}

// leave notes a branch that may carry fuel out of a region.
func (a *meter) leave(l uint32) {
	if a.path == none {
		return
	}
	to := a.frames[len(a.frames)-1-int(l)].region
	if to != a.cur {
		a.patch(patch{pos: uint32(a.in.pos), kind: patchLeave, arg: int64(to)})
	}
}

func (a *meter) brTable() {
	a.close()
	outer := uint32(0)
	depth := int32(1 << 30)
	for _, l := range a.in.labels {
		a.branch(l)
		if d := a.regions[a.frames[len(a.frames)-1-int(l)].region].depth; d < depth {
			outer, depth = l, d
		}
	}
	a.leave(outer)
	a.path = none
}
