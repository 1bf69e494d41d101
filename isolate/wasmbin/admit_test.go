package wasmbin

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Each limit refuses by its own name, at one below what the module has.
func TestAdmit(t *testing.T) {
	a := stateful()
	a.importFunc("env", "note", types(I32), types(I32))
	a.start = 0
	a.tables = []Table{{Type: FuncRef, Min: 7}}
	a.elems = [][]byte{funcElems(false, 1, 1)}
	a.custom = [][]byte{appendName(nil, "x")}
	a.fn("", types(I32), types(I32), nil,
		blk(opLoop, blockEmpty, blk(opBlock, blockEmpty, get(0), op(opBrTable, 1, 0, 1))), get(0))
	info, err := Inspect(a.bytes())
	if err != nil {
		t.Fatal(err)
	}
	allowed := DefaultLimits()
	allowed.Imports = map[string]bool{"env.note": true}
	if err := Admit(info, allowed); err != nil {
		t.Fatalf("refused: %v", err)
	}
	fields := reflect.TypeFor[Limits]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		l := allowed
		reflect.ValueOf(&l).Elem().Field(i).SetZero()
		err := Admit(info, l)
		var refused *AdmissionError
		if !errors.As(err, &refused) || refused.Limit != name || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if refused.Used == 0 || refused.Allowed != 0 {
			t.Errorf("%s: %+v", name, refused)
		}
		perFunction := slices.Contains([]string{"Body", "Locals", "Nesting", "Blocks", "BrTable", "Product", "Volume"}, name)
		if (refused.Func != NoFunc) != perFunction {
			t.Errorf("%s: function %d", name, refused.Func)
		}
	}
}

func TestAdmitImports(t *testing.T) {
	for _, x := range []struct {
		im Import
		ok bool
	}{
		{Import{Module: "env", Name: "note"}, true},
		{Import{Module: "env", Name: "not"}, false},
		{Import{Module: "env.note", Name: ""}, false},
		{Import{Module: "env", Name: "note", Kind: KindMemory}, false},
		{Import{Module: "env", Name: "note", Kind: KindTable}, false},
		{Import{Module: "env", Name: "note", Kind: KindGlobal}, false},
	} {
		l := DefaultLimits()
		l.Imports = map[string]bool{"env.note": true}
		if err := Admit(&Info{Imports: []Import{x.im}}, l); (err == nil) != x.ok {
			t.Errorf("%+v: %v", x.im, err)
		}
	}
}

// The two shapes that kept the compiler busy for minutes, small as they are.
func TestAdmitRefusesCompileBombs(t *testing.T) {
	nest := func(o byte, locals, n int) []byte {
		var a asm
		var body []byte
		for range n {
			body = blk(o, blockEmpty, body)
		}
		a.fn("run", nil, nil, slices.Repeat(types(I32), locals), body)
		return a.bytes()
	}
	var ifs asm
	ifs.fn("run", nil, nil, slices.Repeat(types(I32), 1000), slices.Repeat(slices.Concat(get(0), blk(opIf, blockEmpty)), 5000))
	for _, x := range []struct {
		wasm  []byte
		limit string
	}{
		{nest(opLoop, 500, 450), "Volume"},
		{nest(opLoop, 2000, 2000), "Nesting"},
		{ifs.bytes(), "Product"},
	} {
		info, err := Inspect(x.wasm)
		if err != nil {
			t.Fatal(err)
		}
		var refused *AdmissionError
		if err := Admit(info, DefaultLimits()); !errors.As(err, &refused) || refused.Limit != x.limit {
			t.Errorf("%s: %v", x.limit, err)
		}
	}
}

func TestAdmitGuest(t *testing.T) {
	info, err := Inspect(quickjs(t))
	if err != nil {
		t.Fatal(err)
	}
	l := DefaultLimits()
	l.Imports = map[string]bool{}
	for _, im := range info.Imports {
		l.Imports[im.Module+"."+im.Name] = true
	}
	if err := Admit(info, l); err != nil {
		t.Error(err)
	}
}
