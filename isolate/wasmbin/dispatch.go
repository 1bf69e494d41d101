package wasmbin

import "fmt"

// A dispatcher is a function that calls another one by its number: an instance
// that is called through it needs one stack, where a stack for each export would
// be most of what it holds. Its body, for two functions:
//
//	block; block; block
//	  local.get 0; br_table 0 1 2
//	end; (arguments); call the first; (result); return
//	end; (arguments); call the second; (result); return
//	end; unreachable
//
// It is not metered: what it calls is.
type dispatcher struct {
	to     []uint32 // function indices of the input
	params int      // of the one that has most
}

// Conversions between the dispatcher's i64 and other types, as opcodes.
var (
	fromI64 = map[ValueType][]byte{I64: {}, I32: {0xa7}, F64: {0xbf}, F32: {0xa7, 0xbe}}
	toI64   = map[ValueType][]byte{I64: {}, I32: {0xad}, F64: {0xbd}, F32: {0xbc, 0xad}}
)

func (a *assembler) planDispatch() error {
	if a.o.Dispatch == "" {
		return nil
	}
	d := &dispatcher{}
	exported := map[string]uint32{}
	for _, e := range a.info.Exports {
		if e.Kind == KindFunc {
			exported[e.Name] = e.Index
		}
	}
	for _, name := range a.o.DispatchTo {
		fn, ok := exported[name]
		if !ok {
			return &OptionError{"DispatchTo", "no function " + quote(name) + " is exported"}
		}
		t := a.types[a.funcs[fn]]
		if len(t.Results) > 1 {
			return &OptionError{"DispatchTo", fmt.Sprintf("%s has %d results", quote(name), len(t.Results))}
		}
		for _, v := range append(t.Params[:len(t.Params):len(t.Params)], t.Results...) {
			if _, ok := fromI64[v]; !ok {
				return &OptionError{"DispatchTo", fmt.Sprintf("%s has a value of type %s", quote(name), v)}
			}
		}
		d.to, d.params = append(d.to, fn), max(d.params, len(t.Params))
	}
	a.dispatch = d
	return nil
}

// typ is the dispatcher's type: the number, and an i64 for each parameter.
func (d *dispatcher) typ() []byte {
	b := append(appendU32([]byte{0x60}, uint32(1+d.params)), byte(I32))
	for range d.params {
		b = append(b, byte(I64))
	}
	return append(b, 1, byte(I64))
}

// body is the dispatcher's function, with its size.
func (a *assembler) dispatchBody() []byte {
	d := a.dispatch
	n := uint32(len(d.to))
	b := []byte{0} // no locals
	for range n + 1 {
		b = append(b, opBlock, blockEmpty)
	}
	b = appendU32(append(b, opLocalGet, 0, opBrTable), n)
	for i := range n + 1 {
		b = appendU32(b, i)
	}
	b = append(b, opEnd)
	for _, fn := range d.to {
		t := a.types[a.funcs[fn]]
		for i, v := range t.Params {
			b = append(appendU32(append(b, opLocalGet), uint32(1+i)), fromI64[v]...)
		}
		b = appendU32(append(b, opCall), a.shift(fn))
		if len(t.Results) == 0 {
			b = append(b, opI64Const, 0)
		} else {
			b = append(b, toI64[t.Results[0]]...)
		}
		b = append(b, opReturn, opEnd)
	}
	b = append(b, opUnreachable, opEnd)
	return appendVec(nil, b)
}
