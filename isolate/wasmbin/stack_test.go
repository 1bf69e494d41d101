package wasmbin

import (
	"errors"
	"slices"
	"testing"

	"github.com/tetratelabs/wazero/api"
)

var errStack = errors.New("no stack left")

// recursion calls itself as often as its argument says, through a table or
// not, with some locals.
func recursion(indirect bool, locals int) []byte {
	var a asm
	typ := a.typ(types(I32), types(I32))
	again := call(0)
	if indirect {
		again = append(append(i32(0), ix(opCallIndirect, typ)...), 0)
	}
	a.tables = []Table{{Type: FuncRef, Min: 1}}
	a.elems = [][]byte{slices.Concat([]byte{0}, i32(0), []byte{opEnd, 1, 0})}
	a.fn("run", types(I32), types(I32), slices.Repeat(types(I64), locals),
		get(0), op(i32Eqz, opIf, byte(I32)), i32(7), op(opElse), get(0), i32(1), op(i32Sub), again, op(opEnd))
	return a.bytes()
}

// What recursion takes of the stack is counted, given back, and ended where
// there is none left.
func TestStack(t *testing.T) {
	for _, x := range []struct {
		name     string
		indirect bool
		locals   int
	}{{"direct", false, 0}, {"indirect", true, 0}, {"many locals", false, 500}} {
		t.Run(x.name, func(t *testing.T) {
			o := testOptions
			o.StackExport = "stack"
			wasm, _, err := Rewrite(recursion(x.indirect, x.locals), o)
			if err != nil {
				t.Fatal(err)
			}
			h := newHost(t)
			m := h.instantiate(wasm)
			left := m.ExportedGlobal("stack").(api.MutableGlobal)
			const all = 1 << 20
			h.onRefill = func(int) {
				if int32(left.Get()) < 0 {
					panic(errStack)
				}
			}
			left.Set(all)
			frame := uint64(frameBase + frameLocal*(x.locals+1))
			depth := all / (frame + 50)
			if res, err := m.ExportedFunction("run").Call(h.ctx, depth/2); err != nil || res[0] != 7 {
				t.Errorf("a recursion that fits: %v, %v", res, err)
			}
			if left.Get() != all {
				t.Errorf("%d of %d are left after it", left.Get(), all)
			}
			if _, err := m.ExportedFunction("run").Call(h.ctx, all/frame+10); !errors.Is(err, errStack) {
				t.Errorf("one that does not: %v", err)
			}
		})
	}
}
