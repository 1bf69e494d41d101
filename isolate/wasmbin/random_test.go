package wasmbin

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A gen writes random valid programs that end: every loop and every call
// counts down global 0 and returns when it is used up.
type gen struct {
	a      *asm
	r      *rand.Rand
	labels []genLabel // innermost last
	size   int        // statements that may still be written
	self   uint32
	inLoop int
}

type genLabel struct {
	arity int // operands of a branch to it, all i32
}

const genLocals = 6 // parameter 0 included

func (g *gen) n(n int) int { return g.r.IntN(n) }

func randomProgram(seed uint64) []byte {
	g := &gen{a: &asm{}, r: rand.New(rand.NewPCG(seed, 1))}
	g.a.memory = &Memory{Min: 1, Max: 4, HasMax: true}
	g.a.globals = [][]byte{
		append([]byte{byte(I32), 1}, append(i32(400), opEnd)...),
		append([]byte{byte(I32), 1}, append(i32(7), opEnd)...),
	}
	g.a.importFunc("env", "note", types(I32), types(I32))
	typ := g.a.typ(types(I32), types(I32))
	n := 2 + g.n(5)
	var all []uint32
	for i := range n {
		all = append(all, uint32(1+i))
	}
	g.a.tables = []Table{{Type: FuncRef, Min: uint32(n), Max: uint32(n) + 5, HasMax: true}}
	g.a.elems = [][]byte{funcElems(g.n(2) == 0, all...)}
	for i := range n {
		name := ""
		if i == n-1 {
			name = "run"
		}
		g.self, g.size = uint32(1+i), 10+g.n(60)
		g.labels = []genLabel{{arity: 1}}
		var head []byte
		if g.n(4) > 0 {
			head = g.countdown()
		} else {
			g.self = 0 // may call nothing, so needs no countdown
		}
		g.a.fn(name, types(I32), types(I32), types(I32, I32, I32, I32, I32), head, g.stmts(), g.loop(), g.stmts(), g.expr(2))
	}
	_ = typ
	return g.a.bytes()
}

func (g *gen) countdown() []byte {
	return slices.Concat(ix(opGlobalGet, 0), i32(1), op(i32Sub), ix(opGlobalSet, 0),
		ix(opGlobalGet, 0), i32(0), op(i32LtS),
		op(opIf, blockEmpty), get(uint32(g.n(genLocals))), op(opReturn), op(opEnd))
}

func (g *gen) stmts() (out []byte) {
	for range 1 + g.n(6) {
		if g.size--; g.size < 0 {
			break
		}
		out = append(out, g.stmt()...)
	}
	return out
}

func (g *gen) stmt() []byte {
	switch g.n(16) {
	case 0, 1:
		return slices.Concat(g.expr(3), set(uint32(g.n(genLocals))))
	case 2, 3:
		return g.loop()
	case 4, 5:
		return g.block(opBlock)
	case 6:
		return g.block(opIf)
	case 7:
		return g.ifElse()
	case 8, 9, 10:
		return g.brIf()
	case 11:
		return slices.Concat(g.expr(1), op(opIf, blockEmpty), g.jump(1), op(opEnd))
	case 12:
		return g.brTable()
	case 13:
		return slices.Concat(g.expr(1), i32(0xff), op(i32And), g.expr(2), op(0x36, 2, 0))
	case 14:
		return slices.Concat(i32(int32(g.n(60000))), g.expr(1), i32(int32(g.n(2000))), fc(fcMemoryFill, 0))
	}
	return slices.Concat(g.expr(2), op(opDrop), op(opNop))
}

func (g *gen) blockType(loop bool) (typ uint32, params, results int) {
	params, results = g.n(3)*g.n(2), g.n(3)*g.n(2)
	return g.a.typ(slices.Repeat(types(I32), params), slices.Repeat(types(I32), results)), params, results
}

func (g *gen) exprs(n int) (out []byte) {
	for range n {
		out = append(out, g.expr(2)...)
	}
	return out
}

// body takes params operands and leaves results of its own.
func (g *gen) body(l genLabel, params, results int, head []byte) []byte {
	g.labels = append(g.labels, l)
	out := slices.Concat(slices.Repeat(op(opDrop), params), head, g.stmts())
	switch g.n(8) {
	case 0:
		out = slices.Concat(out, g.jump(0), g.dead())
	default:
		out = append(out, g.exprs(results)...)
	}
	g.labels = g.labels[:len(g.labels)-1]
	return out
}

func (g *gen) loop() []byte {
	typ, params, results := g.blockType(true)
	g.inLoop++
	body := g.body(genLabel{params}, params, results, g.countdown())
	g.inLoop--
	return slices.Concat(g.exprs(params), blkT(opLoop, typ, body), slices.Repeat(op(opDrop), results))
}

func (g *gen) block(o byte) []byte {
	typ, params, results := g.blockType(false)
	if o == opIf { // without else it must leave what it takes
		typ, results = g.a.typ(slices.Repeat(types(I32), params), slices.Repeat(types(I32), params)), params
	}
	out := g.exprs(params)
	if o == opIf {
		out = append(out, g.expr(1)...)
	}
	return slices.Concat(out, blkT(o, typ, g.body(genLabel{results}, params, results, nil)), slices.Repeat(op(opDrop), results))
}

func (g *gen) ifElse() []byte {
	typ, params, results := g.blockType(false)
	l := genLabel{results}
	return slices.Concat(g.exprs(params), g.expr(1), appendS64([]byte{opIf}, int64(typ)),
		g.body(l, params, results, nil), op(opElse), g.body(l, params, results, nil), op(opEnd),
		slices.Repeat(op(opDrop), results))
}

// label picks a branch's label.
func (g *gen) label() (uint32, int) {
	i := g.n(len(g.labels))
	if g.n(3) > 0 { // mostly near ones
		i = len(g.labels) - 1 - g.n(min(3, len(g.labels)))
	}
	return uint32(len(g.labels) - 1 - i), g.labels[i].arity
}

func (g *gen) brIf() []byte {
	l, arity := g.label()
	return slices.Concat(g.exprs(arity), g.expr(1), brIf(l), slices.Repeat(op(opDrop), arity))
}

// jump leaves for good, from skip labels further in.
func (g *gen) jump(skip uint32) []byte {
	if g.n(6) == 0 {
		return slices.Concat(g.expr(1), op(opReturn))
	}
	l, arity := g.label()
	return slices.Concat(g.exprs(arity), br(l+skip))
}

func (g *gen) brTable() []byte {
	first, arity := g.label()
	labels := []uint32{first}
	for range g.n(6) {
		if l, n := g.label(); n == arity {
			labels = append(labels, l)
		}
	}
	out := slices.Concat(op(opBlock, blockEmpty), g.exprs(arity), g.expr(2), i32(7), op(i32And), op(opBrTable))
	out = appendU32(out, uint32(len(labels)-1))
	for _, l := range labels {
		out = appendU32(out, l+1)
	}
	return append(out, opEnd)
}

func (g *gen) dead() []byte {
	switch g.n(4) {
	case 0:
		return br(uint32(g.n(len(g.labels))))
	case 1:
		return op(opUnreachable)
	case 2:
		return op(opLoop, blockEmpty, opBr, 0, opEnd, opUnreachable)
	}
	return nil
}

func (g *gen) expr(depth int) []byte {
	if depth == 0 {
		return get(uint32(g.n(genLocals)))
	}
	switch g.n(14) {
	case 0, 1, 2:
		ops := []byte{i32Add, i32Sub, i32Mul, i32Xor, i32And, i32Rotl, i32Eq, i32LtS}
		return slices.Concat(g.expr(depth-1), g.expr(depth-1), op(ops[g.n(len(ops))]))
	case 3:
		return i32(int32(g.n(1<<20)) - 1000)
	case 4:
		return slices.Concat(g.expr(depth-1), tee(uint32(g.n(genLocals))))
	case 5:
		return ix(opGlobalGet, uint32(g.n(2)))
	case 6:
		return slices.Concat(g.expr(depth-1), i32(0xff), op(i32And), op(0x28, 2, 0))
	case 7:
		if g.self > 0 && g.n(2) == 0 {
			return slices.Concat(g.expr(depth-1), call(uint32(g.n(int(g.self)+1))))
		}
	case 8:
		if g.self > 0 && g.n(3) == 0 {
			return slices.Concat(g.expr(depth-1), g.expr(depth-1), i32(7), op(i32And), append(ix(opCallIndirect, g.a.typ(types(I32), types(I32))), 0))
		}
	case 9:
		if g.n(4) == 0 {
			return slices.Concat(g.expr(depth-1), i32(1), op(i32And), op(opMemoryGrow, 0))
		}
	case 10:
		return slices.Concat(g.expr(depth-1), op(opIf, byte(I32)), g.expr(depth-1), op(opElse), g.expr(depth-1), op(opEnd))
	}
	return get(uint32(g.n(genLocals)))
}

// checkProgram compares plain, metered and exactly counted runs.
func checkProgram(t *testing.T, wasm []byte, arg uint64) {
	plain := exportMemory(t, wasm)
	h := newHost(t)
	want := outcomeOf(h, h.instantiate(plain), []uint64{arg})
	exact, _ := exactly(newHost(t), wasm, []uint64{arg})
	with := metered(t, plain)
	fuel := int64(-1)
	for _, quantum := range []int64{3, 1 << 40} {
		h := newHost(t)
		h.quantum = quantum
		m := h.instantiate(with)
		got := outcomeOf(h, m, []uint64{arg})
		if !slices.Equal(got.results, want.results) || got.trap != want.trap ||
			!slices.Equal(got.imported, want.imported) || !slices.Equal(got.memory, want.memory) {
			t.Fatalf("quantum %d: %v %q, plain %v %q", quantum, got.results, got.trap, want.results, want.trap)
		}
		used := h.used(m)
		if want.trap == "" && used+tinyLeaf < exact {
			t.Fatalf("used %d, instructions cost %d", used, exact)
		}
		if want.trap == "" && fuel >= 0 && used != fuel {
			t.Fatalf("used %d with quantum %d, %d before", used, quantum, fuel)
		}
		fuel = used
	}
}

func TestRandomPrograms(t *testing.T) {
	n := uint64(80)
	if testing.Short() {
		n = 50
	}
	for seed := range n {
		checkProgram(t, randomProgram(seed), seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzRandomPrograms(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, seed, arg uint64) {
		checkProgram(t, randomProgram(seed), uint64(uint32(arg)))
	})
}
