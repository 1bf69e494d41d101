package wasmbin

import (
	"errors"
	"math"
	"testing"

	"github.com/tetratelabs/wazero/api"
)

// dispatched has functions of all types of values.
func dispatched() *asm {
	var a asm
	note := a.importFunc("env", "note", []ValueType{I32}, []ValueType{I32})
	get := func(i byte) []byte { return []byte{opLocalGet, i} }
	a.fn("sub", []ValueType{I32, I32}, []ValueType{I32}, nil, get(0), get(1), []byte{0x6b})
	a.fn("sub64", []ValueType{I64, I64}, []ValueType{I64}, nil, get(0), get(1), []byte{0x7d})
	a.fn("half", []ValueType{F64}, []ValueType{F64}, nil, get(0), get(0), []byte{0xa0})
	a.fn("single", []ValueType{F32, I32}, []ValueType{F32}, nil, get(0), get(0), []byte{0x92})
	a.fn("nothing", nil, nil, nil, i32(6), []byte{opCall, byte(note), 0x1a})
	a.fn("pair", nil, []ValueType{I32, I32}, nil, i32(1), i32(2))
	return &a
}

func TestDispatch(t *testing.T) {
	all := []string{"sub", "sub64", "half", "single", "nothing"}
	for _, metered := range []bool{true, false} {
		o := Options{}
		if metered {
			o = testOptions
		}
		o.Dispatch, o.DispatchTo = "go", all
		wasm, _ := mustRewrite(t, dispatched().bytes(), o)
		h := newHost(t)
		m := h.instantiate(wasm)
		call := func(stack ...uint64) (uint64, error) {
			s := append(stack, make([]uint64, 4)...)
			err := m.ExportedFunction("go").CallWithStack(h.ctx, s)
			return s[0], err
		}
		for _, c := range []struct{ fn, a, b, want uint64 }{
			{0, 1, 2, math.MaxUint32},
			{1, 1, 2, math.MaxUint64},
			{2, math.Float64bits(1.25), 0, math.Float64bits(2.5)},
			{3, api.EncodeF32(1.25), 0, api.EncodeF32(2.5)},
			{4, 0, 0, 0},
		} {
			if got, err := call(c.fn, c.a, c.b); err != nil || got != c.want {
				t.Errorf("metered=%v: %s is %x, %v", metered, all[c.fn], got, err)
			}
		}
		if len(h.imported) != 1 || h.imported[0] != 6 {
			t.Errorf("the host was told %v", h.imported)
		}
		for _, fn := range []uint64{5, math.MaxUint32} {
			if _, err := call(fn); err == nil {
				t.Errorf("there is no function %d, but it answers", fn)
			}
		}
	}
}

func TestDispatchRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"unknown": {Dispatch: "go", DispatchTo: []string{"sub", "other"}},
		"results": {Dispatch: "go", DispatchTo: []string{"pair"}},
		"taken":   {Dispatch: "sub", DispatchTo: []string{"sub"}},
	} {
		_, _, err := Rewrite(dispatched().bytes(), o)
		if e := new(OptionError); !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
