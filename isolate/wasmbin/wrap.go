package wasmbin

// Loops are wrapped, so that nothing but the countdown is in the way of an
// iteration, and the fuel of loops that call nothing is in a local meanwhile:
//
//	global to local              ; if it calls nothing
//	block T
//	  block                      ; one for each target of a br_if out
//	    loop; block
//	      loop T
//	        ...                  ; to branch back:
//	        charge; br_if 1 if too little is left; br 0
//	        ...
//	      end
//	      local to global
//	      br to the end of block T
//	    end; call the host; br 0; end
//	  end
//	  local to global
//	  br to the target
//	end
//
// The compiler lays blocks out in the order of the text. A call to the host
// within the loop would cost each iteration a jump over it, and writing the
// fuel back before each br_if that may leave would cost a store.

const (
	maxWrapped = 16 // wrapping makes nests deeper, so deep ones are left alone
	maxExits   = 4
	wrapping   = 3 // labels that wrapping adds, exits aside
)

// exits are where br_ifs out of a root go: labels as the root's loop sees them.
type exits struct {
	n  int
	to [maxExits]label
}

func (x *exits) find(frame int32) int {
	for i := range x.n {
		if x.to[i].frame == frame {
			return i
		}
	}
	return none
}

// wrapped tells whether region i is a wrapped loop. Only roots have exits:
// leaving other loops does not move the fuel.
func (e *emitter) wrapped(i int32) bool {
	r := &e.a.regions[i]
	return r.loops && !r.params && r.depth <= maxWrapped
}

// findExits gives every wrapped root its exits, and then every region the
// number of labels added around it.
func (e *emitter) findExits() {
	clear(e.exit)
	for i := range e.a.patches {
		p := &e.a.patches[i]
		if p.kind != patchBrIf {
			continue
		}
		root, l := e.root[p.region], &e.a.labels[p.arg]
		if root == none || e.root[l.region] == root || !l.bare || !e.wrapped(root) {
			continue
		}
		x := e.exit[root]
		if x == nil {
			x = &exits{}
			e.exit[root] = x
		}
		if x.find(l.frame) == none && x.n < maxExits {
			frame := e.a.regions[root].frame
			x.to[x.n] = label{index: uint32(frame - 1 - l.frame), frame: l.frame, region: l.region}
			x.n++
		}
	}
	for i := 1; i < len(e.a.regions); i++ {
		r := &e.a.regions[i]
		r.added = e.a.regions[r.parent].added
		if e.wrapped(int32(i)) {
			r.added += wrapping + int32(e.exits(int32(i)).n)
		}
	}
}

var noExits exits

func (e *emitter) exits(i int32) *exits {
	if x := e.exit[i]; x != nil {
		return x
	}
	return &noExits
}

func (e *emitter) enter(i int32) {
	if e.root[i] == i {
		e.take()
	}
	if !e.wrapped(i) {
		return
	}
	bt := e.a.regions[i].block
	e.out = append(append(e.out, opBlock), e.m.wasm[bt.pos:bt.end]...)
	for range e.exits(i).n {
		e.out = append(e.out, opBlock, blockEmpty)
	}
	e.out = append(e.out, opLoop, blockEmpty, opBlock, blockEmpty)
}

func (e *emitter) close(i int32) {
	if e.root[i] == i {
		e.release()
	}
	if !e.wrapped(i) {
		return
	}
	x := e.exits(i)
	e.op(opBr, uint32(2+x.n))
	e.out = append(e.out, opEnd)
	e.refill(e.root[i] != none)
	e.out = append(e.out, opBr, 0, opEnd)
	if x.n == 0 {
		e.out = append(e.out, opUnreachable) // for the results of block T
	}
	for k := range x.n {
		e.out = append(e.out, opEnd)
		e.release()
		// Past block T, and on from where the loop stands.
		e.op(opBr, uint32(x.n-k)+e.label(e.a.regions[i].parent, &x.to[k]))
	}
	e.out = append(e.out, opEnd)
}

// back writes a branch to a loop, which pays for the iteration that ends.
func (e *emitter) back(p *patch, held bool) {
	l, depth := e.a.labels[p.arg], uint32(0)
	if p.kind == patchBackIf {
		e.out = append(e.out, opIf, blockEmpty)
		depth = 1
	}
	n := e.label(p.region, &l) + depth
	if e.wrapped(l.region) {
		e.load(held)
		e.i64(l.cost)
		e.spend(e.root[l.region] != none)
		e.op(opBrIf, n+1)
		e.op(opBr, n)
	} else {
		e.constant(l.cost, held, true)
		if held && e.root[l.region] != e.root[p.region] {
			e.release()
		}
		e.op(opBr, n)
	}
	if depth > 0 {
		e.out = append(e.out, opEnd)
	}
}

// brIf writes a br_if out of its region.
func (e *emitter) brIf(from int32, l *label) {
	root := e.root[from]
	if root == none || e.root[l.region] == root {
		e.out = append(e.out, opBrIf)
		e.out = appendU32(e.out, e.label(from, l))
		return
	}
	k := none
	if l.bare && e.wrapped(root) {
		k = e.exits(root).find(l.frame)
	}
	if k == none {
		e.release()
		e.out = append(e.out, opBrIf)
		e.out = appendU32(e.out, e.label(from, l))
		return
	}
	// To the root's loop, and past the two around it to the exit's block.
	n := l.index - uint32(e.a.regions[root].frame-l.frame)
	e.op(opBrIf, e.target(from, n, root)+uint32(wrapping+k))
}

// target is what a label of a branch from one region to another has become:
// past the wrappings on its way.
func (e *emitter) target(from int32, index uint32, to int32) uint32 {
	return index + uint32(e.a.regions[from].added-e.a.regions[to].added)
}

func (e *emitter) label(from int32, l *label) uint32 {
	return e.target(from, l.index, l.region)
}
