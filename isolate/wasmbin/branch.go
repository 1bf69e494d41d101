package wasmbin

// branch takes the path to label l, and returns its length there.
func (a *meter) branch(l uint32) int64 {
	f := &a.frames[len(a.frames)-1-int(l)]
	if a.path == none {
		return none
	}
	path := a.path + a.regions[a.cur].before - a.regions[f.region].before
	if f.op == opLoop {
		a.regions[f.region].loops = true
	} else {
		f.label = max(f.label, path)
	}
	return path
}

// back tells whether a branch to label l is one to a loop that runs.
func (a *meter) back(l uint32) bool {
	return a.path != none && a.frames[len(a.frames)-1-int(l)].op == opLoop
}

func (a *meter) br() {
	in := &a.in
	a.close()
	path := a.branch(in.index)
	if a.back(in.index) {
		a.replace(patchBack, in.pos, path)
		return
	}
	a.leave(in.index)
	a.relabel(patchLabel, in.imm)
}

func (a *meter) brIf() {
	in := &a.in
	a.close()
	if !a.back(in.index) {
		a.settle(in.pos)
	}
	path := a.branch(in.index)
	switch {
	case !a.back(in.index):
		a.relabel(patchBrIf, in.pos)
	case a.label(in.index).bare:
		a.replace(patchBackIf, in.pos, path)
	default: // with operands in the way, it is charged whether taken or not
		a.patch(patch{pos: uint32(in.pos), kind: patchCheck, arg: path})
		a.relabel(patchBrIf, in.pos)
		a.path = 0
	}
}

// replace notes that the instruction from pos on is written anew.
func (a *meter) replace(kind byte, pos int, cost int64) {
	l := a.label(a.in.index)
	l.cost = cost
	a.patch(patch{pos: uint32(pos), skip: uint32(a.in.end - pos), kind: kind, arg: int64(len(a.labels))})
	a.labels = append(a.labels, l)
}

// relabel notes a branch out of its region, whose label may change.
func (a *meter) relabel(kind byte, pos int) {
	if a.lands(a.in.index) != a.cur {
		a.replace(kind, pos, 0)
	}
}

func (a *meter) label(l uint32) label {
	i := len(a.frames) - 1 - int(l)
	f := &a.frames[i]
	return label{index: l, frame: int32(i), region: f.region, bare: f.bare}
}

// lands returns the region in which a branch to label l lands.
func (a *meter) lands(l uint32) int32 {
	return a.frames[len(a.frames)-1-int(l)].region
}

// leave notes a branch that may carry fuel out of a region.
func (a *meter) leave(l uint32) {
	if to := a.lands(l); a.path != none && to != a.cur {
		a.patch(patch{pos: uint32(a.in.pos), kind: patchLeave, arg: int64(to)})
	}
}

func (a *meter) brTable() {
	a.close()
	cost := int64(none)
	for _, l := range a.in.labels {
		if a.back(l) {
			cost = max(cost, a.branch(l))
		}
	}
	if cost != none {
		a.patch(patch{pos: uint32(a.in.pos), kind: patchCheck, arg: cost})
		a.path = 0
	}
	outer := a.in.labels[0]
	for _, l := range a.in.labels {
		a.branch(l)
		if a.regions[a.lands(l)].depth < a.regions[a.lands(outer)].depth {
			outer = l
		}
	}
	a.leave(outer)
	if a.lands(outer) != a.cur {
		a.patch(patch{
			pos: uint32(a.in.imm), skip: uint32(a.in.end - a.in.imm),
			kind: patchTable, arg: int64(len(a.targets)),
		})
		a.targets = append(a.targets, target{index: uint32(len(a.in.labels))})
		for _, l := range a.in.labels {
			a.targets = append(a.targets, target{l, a.lands(l)})
		}
	}
	a.path = none
}
