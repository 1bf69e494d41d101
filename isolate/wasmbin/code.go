package wasmbin

func (m *module) readCode(r *reader) {
	n := r.count(3, maxFuncs)
	if r.err == nil && n != m.info.Functions {
		r.fail("%d bodies for %d functions", n, m.info.Functions)
		return
	}
	m.bodies = make([]body, 0, n)
	w := walker{m: m}
	for i := range n {
		r.fn = m.info.ImportedFunctions + i
		size := r.count(1, maxBody)
		if r.err != nil {
			return
		}
		s := r.sub(uint32(size), r.section)
		r.fn = NoFunc
		b := m.readBody(&s, size, &w)
		if s.err != nil {
			r.err = s.err
			return
		}
		m.info.CodeBytes += size
		m.bodies = append(m.bodies, b)
	}
}

// readBody reads one function, checks every index in it and enters it in the
// facts of the module.
func (m *module) readBody(r *reader, size int, w *walker) body {
	start := r.pos
	locals := uint64(len(m.types[m.funcs[r.fn]].Params))
	for range r.count(2, maxLocals) {
		locals += uint64(r.u32())
		r.valueType()
		if locals > maxLocals {
			r.fail("more than %d locals", maxLocals)
		}
		if r.err != nil {
			return body{}
		}
	}
	b := body{
		decl:   span{uint32(start), uint32(r.pos)},
		code:   span{uint32(r.pos), uint32(len(r.b))},
		locals: uint32(locals),
	}
	facts := w.walk(r, b)
	r.done()
	b.calls = facts.calls
	if r.err == nil {
		facts.size = uint64(size)
		m.info.Largest.add(r.fn, facts)
	}
	return b
}

// facts are what walk finds out about one function.
type facts struct {
	size, locals, nesting, blocks, loops, brTable uint64

	calls bool
}

func (l *Largest) add(fn int, f facts) {
	for _, x := range []struct {
		max   *Max
		value uint64
	}{
		{&l.Body, f.size}, {&l.Locals, f.locals}, {&l.Nesting, f.nesting},
		{&l.Blocks, f.blocks}, {&l.BrTable, f.brTable},
		{&l.Product, f.locals * f.blocks}, {&l.Volume, f.locals * f.loops * f.nesting},
	} {
		if x.value > x.max.Value {
			*x.max = Max{x.value, fn}
		}
	}
}

// A walker checks function bodies. It is reused between them for its memory.
type walker struct {
	m      *module
	in     instr
	frames []byte // opcodes of the open blocks
}

// walk reads the expression of b: its nesting, and every index against its
// index space. Indices matter because a rewrite appends to the spaces: what
// pointed just beyond the end would come to mean what was added.
func (w *walker) walk(r *reader, b body) facts {
	f := facts{locals: uint64(b.locals)}
	w.frames = append(w.frames[:0], opBlock)
	for len(w.frames) > 0 {
		r.next(&w.in)
		if r.err != nil {
			return f
		}
		switch op := w.in.op; op {
		case opBlock, opLoop, opIf:
			w.open(r, &f)
		case opElse:
			if w.frames[len(w.frames)-1] != opIf {
				r.failAt(w.in.pos, "else without if")
				return f
			}
			w.frames[len(w.frames)-1] = opElse
		case opEnd:
			w.frames = w.frames[:len(w.frames)-1]
		default:
			w.check(r, b, &f)
		}
	}
	return f
}

func (w *walker) open(r *reader, f *facts) {
	if w.in.block == blockIndexed {
		w.within(r, w.in.index, len(w.m.types), "type")
	}
	f.blocks++
	if w.in.op == opLoop {
		f.loops++
	}
	f.nesting = max(f.nesting, uint64(len(w.frames)))
	if len(w.frames) > maxNesting {
		r.failAt(w.in.pos, "nested deeper than %d", maxNesting)
	}
	w.frames = append(w.frames, w.in.op)
}

func (w *walker) within(r *reader, i uint32, n int, what string) {
	if int64(i) >= int64(n) {
		r.failAt(w.in.pos, "%s index %d of %d", what, i, n)
	}
}

func (w *walker) check(r *reader, b body, f *facts) {
	in, m := &w.in, w.m
	switch in.op {
	case opBr, opBrIf:
		w.within(r, in.index, len(w.frames), "label")
	case opBrTable:
		for _, l := range in.labels {
			w.within(r, l, len(w.frames), "label")
		}
		f.brTable = max(f.brTable, uint64(len(in.labels)))
	case opRefFunc:
		w.within(r, in.index, len(m.funcs), "function")
	case opCall:
		f.calls = true
		w.within(r, in.index, len(m.funcs), "function")
	case opCallIndirect:
		f.calls = true
		w.within(r, in.index, len(m.types), "type")
		w.within(r, in.index2, len(m.info.Tables), "table")
	case opLocalGet, opLocalSet, opLocalTee:
		w.within(r, in.index, int(b.locals), "local")
	case opGlobalGet, opGlobalSet:
		w.within(r, in.index, len(m.info.Globals), "global")
	case opTableGet, opTableSet:
		w.within(r, in.index, len(m.info.Tables), "table")
		m.info.MutatesTable = m.info.MutatesTable || in.op == opTableSet
	case opMemoryGrow:
		m.info.GrowsMemory = true
	case opPrefixFC:
		w.checkBulk(r)
	case opPrefixFD:
		m.info.UsesSIMD = true
	}
}

func (w *walker) checkBulk(r *reader) {
	in, info := &w.in, w.m.info
	tables := len(info.Tables)
	switch in.sub {
	case fcMemoryInit, fcDataDrop:
		if !w.m.hasCount {
			r.failAt(in.pos, "needs a data count section")
		}
		w.within(r, in.index, int(w.m.dataCount), "data segment")
		info.InitsMemory = info.InitsMemory || in.sub == fcMemoryInit
		info.DropsData = info.DropsData || in.sub == fcDataDrop
	case fcTableInit:
		w.within(r, in.index, int(w.m.elements), "element segment")
		w.within(r, in.index2, tables, "table")
	case fcElemDrop:
		w.within(r, in.index, int(w.m.elements), "element segment")
	case fcTableCopy:
		w.within(r, in.index, tables, "table")
		w.within(r, in.index2, tables, "table")
	case fcTableGrow, fcTableSize, fcTableFill:
		w.within(r, in.index, tables, "table")
	}
	switch in.sub {
	case fcTableInit, fcElemDrop, fcTableCopy, fcTableGrow, fcTableFill:
		info.MutatesTable = true
	}
	if i, ok := mover(in.sub); ok {
		w.m.moves[i] = true
	}
	info.GrowsTable = info.GrowsTable || in.sub == fcTableGrow
}
