package wasmbin

import "fmt"

// An assembler writes the output module section by section.
type assembler struct {
	*module
	o        Options
	shifts   bool // function indices move by one
	oofType  uint32
	dispatch *dispatcher // to add, or nil
	exports  []Export    // to add
	// Functions that fill and copy in pieces: their indices, where there are
	// any, their type and number.
	movers   [2]uint32
	moveType uint32
	added    uint32
	out      []byte
}

func (m *module) rewrite(o Options) ([]byte, *Info, error) {
	a := &assembler{module: m, o: o, shifts: o.Meter}
	info := *m.info
	if err := a.plan(&info); err != nil {
		return nil, nil, err
	}
	// Metering makes code about half as large again; one growth step at most.
	a.out = make([]byte, 0, len(m.wasm)+m.info.CodeBytes)
	a.out = append(a.out, magic...)
	for _, id := range sectionOrder {
		content, err := a.section(id)
		if err != nil {
			return nil, nil, err
		}
		if content != nil {
			a.out = appendVec(append(a.out, byte(id)), content)
		}
	}
	if names := m.names(a.shift); names != nil {
		a.out = appendVec(append(a.out, secCustom), names)
	}
	return a.out, &info, nil
}

func (a *assembler) shift(fn uint32) uint32 {
	if a.shifts && int(fn) >= a.info.ImportedFunctions {
		return fn + 1
	}
	return fn
}

// plan checks the options against the module and decides what is added.
func (a *assembler) plan(info *Info) error {
	if err := a.planMeter(); err != nil {
		return err
	}
	if err := a.planDispatch(); err != nil {
		return err
	}
	a.planPieces()
	if own := len(a.info.Memories) - a.importedMemories; own == 0 && (a.o.MemoryMin != 0 || a.o.MemoryMax != 0) {
		return &OptionError{"MemoryMin", "the module has no memory of its own"}
	}
	a.exports = append(a.exports, a.o.Exports...)
	for i, g := range a.info.Globals {
		if a.o.ExportGlobals == "" || !g.Mutable {
			continue
		}
		name := fmt.Sprintf("%s%d", a.o.ExportGlobals, i)
		a.exports = append(a.exports, Export{name, KindGlobal, uint32(i)})
		info.ExportedGlobals = append(info.ExportedGlobals, ExportedGlobal{name, uint32(i), g.Type})
	}
	return a.checkExports()
}

func (a *assembler) planMeter() error {
	if !a.o.Meter {
		if a.o.StackExport != "" {
			return &OptionError{"StackExport", "needs Meter"}
		}
		return nil
	}
	if a.o.FuelExport == "" || a.o.OutOfFuelModule == "" || a.o.OutOfFuelName == "" {
		return &OptionError{"Meter", "needs FuelExport, OutOfFuelModule and OutOfFuelName"}
	}
	for _, im := range a.info.Imports {
		// It could refill itself, or take the host by surprise.
		if im.Module == a.o.OutOfFuelModule && im.Name == a.o.OutOfFuelName {
			return &OptionError{"OutOfFuelName", "the module imports it itself"}
		}
	}
	a.oofType = uint32(len(a.types))
	for i, t := range a.types {
		if len(t.Params)+len(t.Results) == 0 {
			a.oofType = uint32(i)
			break
		}
	}
	return nil
}

func (a *assembler) checkExports() error {
	taken := make(map[string]bool, len(a.info.Exports)+len(a.exports)+1)
	for _, e := range a.info.Exports {
		taken[e.Name] = true
	}
	if a.o.Meter {
		if taken[a.o.FuelExport] {
			return &OptionError{"FuelExport", quote(a.o.FuelExport) + " is exported already"}
		}
		taken[a.o.FuelExport] = true
	}
	if name := a.o.StackExport; name != "" {
		if taken[name] {
			return &OptionError{"StackExport", quote(name) + " is exported already"}
		}
		taken[name] = true
	}
	if a.dispatch != nil {
		if taken[a.o.Dispatch] {
			return &OptionError{"Dispatch", quote(a.o.Dispatch) + " is exported already"}
		}
		taken[a.o.Dispatch] = true
	}
	for _, e := range a.exports {
		if taken[e.Name] {
			return &OptionError{"Exports", quote(e.Name) + " is exported already"}
		}
		if int64(e.Index) >= int64(a.space(e.Kind)) {
			return &OptionError{"Exports", fmt.Sprintf("%s: %s %d of %d", quote(e.Name), e.Kind, e.Index, a.space(e.Kind))}
		}
		taken[e.Name] = true
	}
	return nil
}

// section returns the new content of a section, nil for none.
func (a *assembler) section(id int) ([]byte, error) {
	switch id {
	case secType:
		var more []byte
		n := a.newTypes()
		if a.o.Meter && int(a.oofType) == len(a.types) {
			more = append(more, 0x60, 0, 0)
		}
		if a.newMoveType() {
			more = append(more, 0x60, 3, byte(I32), byte(I32), byte(I32), 0)
		}
		if a.dispatch != nil {
			more = append(more, a.dispatch.typ()...)
		}
		return a.extended(id, n, more), nil
	case secFunction:
		var more []byte
		n := a.added
		if a.dispatch != nil {
			n++
			more = appendU32(more, uint32(len(a.types))+a.newTypes()-1)
		}
		for range a.added {
			more = appendU32(more, a.moveType)
		}
		return a.extended(id, n, more), nil
	case secImport:
		if a.o.Meter {
			b := appendName(appendName(nil, a.o.OutOfFuelModule), a.o.OutOfFuelName)
			return a.extended(id, 1, appendU32(append(b, byte(KindFunc)), a.oofType)), nil
		}
	case secTable:
		return a.tables(), nil
	case secMemory:
		return a.memories()
	case secGlobal:
		fuel, stack := []byte{byte(I64), 1, opI64Const, 0, opEnd}, []byte{byte(I32), 1, opI32Const, 0, opEnd}
		switch {
		case a.o.StackExport != "":
			return a.extended(id, 2, append(fuel, stack...)), nil
		case a.o.Meter:
			return a.extended(id, 1, fuel), nil
		}
	case secExport:
		return a.exportSection(), nil
	case secStart:
		if a.o.DropStart || !a.info.HasStart {
			return nil, nil
		}
		return appendU32(nil, a.shift(a.start)), nil
	case secCode:
		return a.code()
	}
	return a.extended(id, 0, nil), nil
}

// newTypes is the number of types that are added; the dispatcher's is the last.
func (a *assembler) newTypes() (n uint32) {
	if a.o.Meter && int(a.oofType) == len(a.types) {
		n++
	}
	if a.newMoveType() {
		n++
	}
	if a.dispatch != nil {
		n++
	}
	return n
}

// extended returns the section with its function indices shifted and n more
// entries, which more holds.
func (a *assembler) extended(id int, n uint32, more []byte) []byte {
	s := a.sections[id]
	if s.end == 0 {
		if n == 0 {
			return nil
		}
		return append(appendU32(nil, n), more...)
	}
	r := reader{b: a.wasm[:s.end], pos: int(s.pos)}
	out := make([]byte, 0, int(s.end-s.pos)+len(more)+8)
	if id != secDataCount {
		out = appendU32(out, r.u32()+n)
	}
	out = a.copy(out, span{uint32(r.pos), s.end})
	return append(out, more...)
}

// copy appends a part of the input with its function indices shifted.
func (a *assembler) copy(out []byte, s span) []byte {
	if a.shifts {
		for len(a.refs) > 0 && a.refs[0].pos < s.end {
			ref := a.refs[0]
			a.refs = a.refs[1:]
			if ref.pos < s.pos {
				continue
			}
			out = append(out, a.wasm[s.pos:ref.pos]...)
			out = appendU32(out, a.shift(ref.index))
			s.pos = ref.pos + ref.size
		}
	}
	return append(out, a.wasm[s.pos:s.end]...)
}

func (a *assembler) tables() []byte {
	own := a.info.Tables[a.importedTables:]
	if len(own) == 0 {
		return nil
	}
	out := appendU32(nil, uint32(len(own)))
	for _, t := range own {
		if limit := a.o.TableMax; limit != 0 && (!t.HasMax || t.Max > limit) {
			// Never below the minimum: such a table cannot grow, and Admit
			// has seen how large it is.
			t.HasMax, t.Max = true, max(limit, t.Min)
		}
		out = appendLimits(append(out, byte(t.Type)), t.Min, t.Max, t.HasMax)
	}
	return out
}

func (a *assembler) memories() ([]byte, error) {
	own := a.info.Memories[a.importedMemories:]
	if len(own) == 0 {
		return nil, nil
	}
	m := own[0]
	if a.o.MemoryMin != 0 {
		if a.o.MemoryMin < m.Min {
			return nil, &OptionError{"MemoryMin", fmt.Sprintf("%d pages, the module asks for %d", a.o.MemoryMin, m.Min)}
		}
		m.Min = a.o.MemoryMin
	}
	if a.o.MemoryMax != 0 && (!m.HasMax || a.o.MemoryMax < m.Max) {
		m.HasMax, m.Max = true, a.o.MemoryMax
	}
	if m.HasMax && m.Max < m.Min {
		return nil, &OptionError{"MemoryMax", fmt.Sprintf("%d pages, below the minimum of %d", m.Max, m.Min)}
	}
	return appendLimits([]byte{1}, m.Min, m.Max, m.HasMax), nil
}

func appendLimits(b []byte, min, max uint32, hasMax bool) []byte {
	if !hasMax {
		return appendU32(append(b, 0), min)
	}
	return appendU32(appendU32(append(b, 1), min), max)
}

func (a *assembler) exportSection() []byte {
	var more []byte
	add := func(name string, k Kind, i uint32) {
		more = appendU32(append(appendName(more, name), byte(k)), i)
	}
	n := uint32(len(a.exports))
	for _, e := range a.exports {
		if e.Kind == KindFunc {
			e.Index = a.shift(e.Index)
		}
		add(e.Name, e.Kind, e.Index)
	}
	if a.o.Meter {
		add(a.o.FuelExport, KindGlobal, uint32(len(a.info.Globals)))
		n++
	}
	if a.o.StackExport != "" {
		add(a.o.StackExport, KindGlobal, uint32(len(a.info.Globals))+1)
		n++
	}
	if a.dispatch != nil {
		add(a.o.Dispatch, KindFunc, a.shift(uint32(len(a.funcs))))
		n++
	}
	return a.extended(secExport, n, more)
}

func (a *assembler) code() ([]byte, error) {
	var more []byte
	n := uint32(0)
	if a.dispatch != nil {
		n, more = 1, a.dispatchBody()
	}
	n, more = n+a.added, append(more, a.moverBodies()...)
	if !a.o.Meter || len(a.bodies) == 0 {
		return a.extended(secCode, n, more), nil
	}
	e := emitter{m: a.module, exit: map[int32]*exits{}, fuel: uint32(len(a.info.Globals)), oof: uint32(a.info.ImportedFunctions)}
	e.movers, e.moveType = a.movers, a.moveType
	e.a.stack = a.o.StackExport != ""
	out := make([]byte, 0, a.info.CodeBytes*3/2)
	out = appendU32(out, uint32(len(a.bodies))+n)
	for i := range a.bodies {
		e.out = e.out[:0]
		if err := e.function(a.info.ImportedFunctions + i); err != nil {
			return nil, err
		}
		out = appendVec(out, e.out)
	}
	return append(out, more...), nil
}
