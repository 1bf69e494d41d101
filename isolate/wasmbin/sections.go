package wasmbin

func (m *module) readTypes(r *reader) {
	n := r.count(3, maxTypes)
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
	n := r.count(1, maxValues)
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
	for range r.count(4, maxImports) {
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
	n := r.count(1, maxFuncs)
	for range n {
		m.funcs = append(m.funcs, m.typeIndex(r))
		if r.err != nil {
			return
		}
	}
	m.info.Functions = n
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
	for range r.count(3, maxEntities) {
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
		if e.Kind == KindFunc {
			if m.info.ExportedFuncs == nil {
				m.info.ExportedFuncs = map[string]FuncType{}
			}
			m.info.ExportedFuncs[e.Name] = m.types[m.funcs[e.Index]]
		}
		m.info.Exports = append(m.info.Exports, e)
	}
}
