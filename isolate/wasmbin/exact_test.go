package wasmbin

import (
	"testing"

	"github.com/tetratelabs/wazero/api"
)

// countExactly rewrites wasm so that the exported global "exact" counts the
// cost of every instruction that runs, one by one: slow, and too simple to be
// wrong. Calls count nothing, since what they cost a metered module includes
// tiny leaves; lengths are left out.
func countExactly(t testing.TB, wasm []byte) []byte {
	t.Helper()
	m, err := decode(wasm)
	if err != nil {
		t.Fatal(err)
	}
	counter := uint32(len(m.info.Globals))
	code := appendU32(nil, uint32(len(m.bodies)))
	for _, b := range m.bodies {
		body := append([]byte(nil), wasm[b.decl.pos:b.decl.end]...)
		r := reader{b: wasm[:b.code.end], pos: int(b.code.pos)}
		var in instr
		for r.left() > 0 {
			r.next(&in)
			cost := m.cost(&in)
			if in.op == opCall || in.op == opCallIndirect {
				cost = 0
			}
			if cost > 0 {
				body = append(appendU32(append(body, opGlobalGet), counter), opI64Const)
				body = append(appendS64(body, cost), i64Add)
				body = appendU32(append(body, opGlobalSet), counter)
			}
			body = append(body, wasm[in.pos:in.end]...)
		}
		code = appendVec(code, body)
	}
	a := &assembler{module: m}
	a.exports = []Export{{"exact", KindGlobal, counter}}
	out := append([]byte(nil), magic...)
	for _, id := range sectionOrder {
		content, err := a.section(id)
		if err != nil {
			t.Fatal(err)
		}
		switch id {
		case secCode:
			content = code
		case secGlobal:
			content = a.extended(id, 1, []byte{byte(I64), 1, opI64Const, 0, opEnd})
		}
		if content != nil {
			out = appendVec(append(out, byte(id)), content)
		}
	}
	return out
}

// exactly runs wasm with exact counting.
func exactly(h *host, wasm []byte, args []uint64) (int64, api.Module) {
	m := h.instantiate(countExactly(h.t, wasm))
	_, _ = m.ExportedFunction("run").Call(h.ctx, args...)
	return int64(m.ExportedGlobal("exact").Get()), m
}

// No path costs less fuel than its instructions, and none very much more.
func TestFuelCoversEveryPath(t *testing.T) {
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			with := metered(t, p.wasm)
			for _, args := range p.args {
				h := newHost(t)
				exact, _ := exactly(h, p.wasm, args)
				m := h.instantiate(with)
				_, err := m.ExportedFunction("run").Call(h.ctx, args...)
				used := h.used(m)
				if used+tinyLeaf < exact && err == nil { // called from outside, a tiny leaf is not paid for
					t.Errorf("run%v used %d, but its instructions cost %d", args, used, exact)
				}
				if used > 20*exact+2000+200000 {
					t.Errorf("run%v used %d for instructions that cost %d", args, used, exact)
				}
				t.Logf("run%v: %d, exact %d", args, used, exact)
			}
		})
	}
}
