package wasmbin

// An emitter writes metered function bodies.
type emitter struct {
	m    *module
	a    meter
	fuel uint32 // index of the global
	oof  uint32 // index of the imported function
	out  []byte
	root []int32          // region → the loop whose fuel is in the local with it, or none
	exit map[int32]*exits // of the wrapped roots that have any
	// Functions that fill and copy in pieces, and their type.
	movers   [2]uint32
	moveType uint32

	// Locals of the function at hand: the fuel of call-free loops, an operand
	// and a result.
	held, operand, result uint32
	// frame is what the function at hand takes of the stack.
	frame int64
}

// function appends the body of function fn (imports counted), without its size.
func (e *emitter) function(fn int) *Error {
	b := e.m.bodies[fn-e.m.info.ImportedFunctions]
	r := reader{b: e.m.wasm[:b.code.end], pos: int(b.code.pos), section: "code", fn: fn}
	e.a.m = e.m
	e.a.analyse(&r, len(e.m.types[e.m.funcs[fn]].Results) == 0, b.calls)
	if r.err != nil {
		return r.err
	}
	e.frame = frameBase + frameLocal*int64(b.locals) + int64(b.code.end-b.code.pos)/frameCode
	holds := e.findRoots()
	e.findExits()
	if !e.locals(b, holds) {
		return &Error{Section: "code", Func: fn, Offset: int(b.decl.pos), Reason: "no room for more locals"}
	}
	leaf := e.tinyLeaf()
	pos := b.code.pos
	for i := range e.a.patches {
		p := &e.a.patches[i]
		if leaf && p.kind != patchCall {
			continue
		}
		e.out = append(e.out, e.m.wasm[pos:p.pos]...)
		pos = p.pos + p.skip
		e.patch(p)
	}
	e.out = append(e.out, e.m.wasm[pos:b.code.end]...)
	return nil
}

// findRoots finds the outermost loops that call nothing: while one runs, the
// fuel is held in a local, which compiled code keeps in a register.
func (e *emitter) findRoots() (any bool) {
	e.root = append(e.root[:0], none)
	for i := 1; i < len(e.a.regions); i++ {
		r := &e.a.regions[i]
		root := e.root[r.parent]
		if root == none && !r.calls {
			root, any = int32(i), true
		}
		e.root = append(e.root, root)
	}
	return any
}

// tinyLeaf tells whether the calls of this function have paid for it.
func (e *emitter) tinyLeaf() bool {
	return len(e.a.regions) == 1 && !e.a.calls && !e.a.bulk && e.total() <= tinyLeaf
}

// largeLeaf tells whether the function does so much, if only once for each
// call, that it is checked although it calls nothing.
func (e *emitter) largeLeaf() bool { return e.total() > maxLeaf }

// total is what the function's code costs if all of it runs once.
func (e *emitter) total() int64 {
	total := e.a.cost
	for i := range e.a.patches {
		if p := &e.a.patches[i]; p.kind == patchPart {
			total += p.arg
		}
	}
	return total
}

// locals writes the declarations of b with the ones that metering needs.
func (e *emitter) locals(b body, holds bool) bool {
	r := reader{b: e.m.wasm[:b.decl.end], pos: int(b.decl.pos)}
	groups, next := r.u32(), b.locals
	var extra []byte
	if holds {
		e.held, next = next, next+1
		groups++
		extra = append(extra, 1, byte(I64))
	}
	if e.a.bulk {
		e.operand, e.result, next = next, next+1, next+2
		groups++
		extra = append(extra, 2, byte(I32))
	}
	e.out = appendU32(e.out, groups)
	e.out = append(e.out, e.m.wasm[r.pos:b.decl.end]...)
	e.out = append(e.out, extra...)
	return next <= maxLocals
}

func (e *emitter) patch(p *patch) {
	root := e.root[p.region]
	held := root != none
	switch p.kind {
	case patchCall:
		e.out = appendU32(e.out, e.shift(uint32(p.arg)))
	case patchHead:
		e.constant(e.a.cost, held, e.a.calls || e.largeLeaf())
		if e.a.stack && e.a.calls {
			e.checkStack()
		}
	case patchPart:
		if p.arg > 0 {
			e.constant(p.arg, held, e.a.calls)
		}
	case patchCheck:
		e.constant(p.arg, held, true)
	case patchEnter:
		e.enter(p.region)
	case patchClose:
		e.close(p.region)
	case patchLeave:
		if held && e.root[p.arg] != root {
			e.release()
		}
	case patchLabel:
		e.out = appendU32(e.out, e.label(p.region, &e.a.labels[p.arg]))
	case patchBrIf:
		e.brIf(p.region, &e.a.labels[p.arg])
	case patchBack, patchBackIf:
		e.back(p, held)
	case patchTable:
		n := int64(e.a.targets[p.arg].index)
		e.out = appendU32(e.out, uint32(n-1)) // the default is not counted
		for i := range n {
			t := e.a.targets[p.arg+1+i]
			e.out = appendU32(e.out, e.target(p.region, t.index, t.region))
		}
	case patchBulk:
		e.bulk(p, held)
	case patchMove:
		e.bulk(p, held)
		e.inPieces(p, held)
	case patchGrow:
		e.grow(p, held)
	case patchDown:
		e.move(opI32Sub)
	case patchUp:
		e.move(opI32Add)
	}
}

// checkStack asks the host if the callers have taken more of the stack than there
// is. At each call it would cost the compiler a block.
func (e *emitter) checkStack() {
	e.op(opGlobalGet, e.fuel+1)
	e.out = append(e.out, opI32Const, 0, opI32LtS, opIf, blockEmpty)
	e.op(opCall, e.oof)
	e.out = append(e.out, opEnd)
}

// move takes the function's frame from the stack or gives it back.
func (e *emitter) move(op byte) {
	e.op(opGlobalGet, e.fuel+1)
	e.out = append(appendS64(append(e.out, opI32Const), e.frame), op)
	e.op(opGlobalSet, e.fuel+1)
}

// take moves the fuel from the global to the local, release moves it back.
func (e *emitter) take() {
	e.op(opGlobalGet, e.fuel)
	e.op(opLocalSet, e.held)
}

func (e *emitter) release() {
	e.op(opLocalGet, e.held)
	e.op(opGlobalSet, e.fuel)
}

func (e *emitter) shift(fn uint32) uint32 {
	if int(fn) < e.m.info.ImportedFunctions {
		return fn
	}
	return fn + 1
}

func (e *emitter) op(op byte, index uint32) {
	e.out = appendU32(append(e.out, op), index)
}

func (e *emitter) i64(v int64) {
	e.out = appendS64(append(e.out, opI64Const), v)
}

// constant charges a known cost.
func (e *emitter) constant(cost int64, held, check bool) {
	e.load(held)
	e.i64(cost)
	e.store(held, check)
}

func (e *emitter) load(held bool) {
	if held {
		e.op(opLocalGet, e.held)
	} else {
		e.op(opGlobalGet, e.fuel)
	}
}

// store subtracts the cost on the stack from the fuel below it, and asks the
// host when check is set and too little is left.
func (e *emitter) store(held, check bool) {
	if check {
		e.spend(held)
		e.out = append(e.out, opIf, blockEmpty)
		e.refill(held)
		e.out = append(e.out, opEnd)
		return
	}
	e.out = append(e.out, opI64Sub)
	if held {
		e.op(opLocalSet, e.held)
	} else {
		e.op(opGlobalSet, e.fuel)
	}
}

// spend is store that leaves on the stack whether too little is left.
func (e *emitter) spend(held bool) {
	e.out = append(e.out, opI64Sub)
	if held {
		e.op(opLocalTee, e.held)
	} else {
		e.op(opGlobalSet, e.fuel)
		e.op(opGlobalGet, e.fuel)
	}
	e.out = append(e.out, opI64Const, 0, opI64LtS)
}

// refill asks the host.
func (e *emitter) refill(held bool) {
	if held {
		e.release()
	}
	e.op(opCall, e.oof)
	if held {
		e.take()
	}
}

// bulk charges the length on the stack, before the instruction runs.
func (e *emitter) bulk(p *patch, held bool) {
	e.op(opLocalTee, e.operand)
	e.load(held)
	e.op(opLocalGet, e.operand)
	e.out = append(e.out, opI64ExtendU)
	if p.arg == 0 {
		e.i64(bulkShift)
		e.out = append(e.out, opI64ShrU)
	} else if p.arg != 1 {
		e.i64(p.arg)
		e.out = append(e.out, opI64Mul)
	}
	e.store(held, true)
}

// grow charges what was added, after the instruction and only if it was: a
// program may ask for more than there is, be refused and go on.
func (e *emitter) grow(p *patch, held bool) {
	e.op(opLocalTee, e.operand)
	e.out = append(e.out, e.m.wasm[p.pos:p.pos+p.skip]...)
	e.op(opLocalTee, e.result)
	e.load(held)
	e.op(opLocalGet, e.operand)
	e.out = append(e.out, opI64ExtendU)
	e.i64(p.arg)
	e.out = append(e.out, opI64Mul, opI64Const, 0)
	e.op(opLocalGet, e.result)
	e.out = appendS64(append(e.out, opI32Const), -1)
	e.out = append(e.out, opI32Ne, opSelect)
	e.store(held, true)
}
