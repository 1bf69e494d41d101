package wasmbin

// readElements reads element segments. Their flags: bit 0 not active, bit 1 an
// explicit table or a declaration, bit 2 expressions instead of indices.
func (m *module) readElements(r *reader) {
	n := r.count(3, maxEntities)
	m.elements = uint32(n)
	m.info.Elements = n
	for range n {
		start := r.pos
		flags := r.u32()
		if flags > 7 {
			r.failAt(start, "unknown element segment %d", flags)
		}
		active := flags&1 == 0
		if active && flags&2 != 0 {
			r.index(len(m.info.Tables), "table")
		}
		if active {
			m.constExpr(r)
		}
		switch {
		case flags&3 == 0: // the kind is implied
		case flags&4 != 0:
			r.refType()
		default:
			r.zero()
		}
		m.readEntries(r, flags&4 != 0)
		if r.err != nil {
			return
		}
	}
}

func (m *module) readEntries(r *reader, exprs bool) {
	n := r.count(1, maxEntries-m.info.ElementEntries)
	m.info.ElementEntries += n
	for range n {
		if exprs {
			m.constExpr(r)
		} else {
			m.funcRef(r)
		}
		if r.err != nil {
			return
		}
	}
}

func (m *module) readData(r *reader) {
	n := r.count(2, maxEntities)
	m.info.DataSegments = n
	for range n {
		start := r.pos
		flags := r.u32()
		switch flags {
		case 0:
			m.constExpr(r)
		case 1:
		case 2:
			r.index(len(m.info.Memories), "memory")
			m.constExpr(r)
		default:
			r.failAt(start, "unknown data segment %d", flags)
		}
		size := r.count(1, MaxSize)
		r.skip(size)
		if r.err != nil {
			return
		}
		m.info.DataBytes += size
		if flags == 1 {
			m.info.PassiveData++
		}
	}
}

// readCustom keeps what the rewrite keeps of the name section. Custom sections
// cannot make a module invalid, so a malformed one is only not kept.
func (m *module) readCustom(r reader) {
	if r.name() != "name" || r.err != nil {
		return
	}
	for r.err == nil && r.left() > 0 {
		start := r.pos
		id := r.byte()
		s := r.sub(r.u32(), r.section)
		switch {
		case r.err != nil:
		case id == 0:
			m.moduleName = r.b[start:r.pos]
		case id == 1:
			m.funcNames = span{uint32(s.pos), uint32(len(s.b))}
		}
	}
}

// names returns the name section with function indices shifted, or nil.
func (m *module) names(shift func(uint32) uint32) []byte {
	r := reader{b: m.wasm[:m.funcNames.end], pos: int(m.funcNames.pos), section: "name", fn: NoFunc}
	var funcs []byte
	if r.left() > 0 {
		n := r.count(2, maxFuncs)
		funcs = appendU32(funcs, uint32(n))
		last := -1
		for range n {
			i := m.funcIndex(&r)
			name := r.name()
			// The engine refuses the module over a name map out of order.
			if r.err != nil || int(i) <= last {
				funcs = nil
				break
			}
			last = int(i)
			funcs = appendName(appendU32(funcs, shift(i)), name)
		}
	}
	if funcs == nil && m.moduleName == nil {
		return nil
	}
	out := appendName(nil, "name")
	out = append(out, m.moduleName...)
	if funcs != nil {
		out = appendVec(append(out, 1), funcs)
	}
	return out
}
