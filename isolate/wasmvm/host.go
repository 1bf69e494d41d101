package wasmvm

import (
	"context"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// A Host is a function that guests import. V is the interpreter's own VM.
type Host[V any] struct {
	Module, Name string
	// Params and Results have i for an i32, l for an i64 each.
	Params, Results string
	// Call finds the parameters on the stack and leaves the results there.
	Call func(vm V, stack []uint64)
}

// Export gives functions to a runtime's modules. outOfFuel is what a metered
// module calls when its fuel is used up.
func Export[V any](ctx context.Context, r wazero.Runtime, functions []Host[V], outOfFuel func(vm V)) error {
	builders := map[string]wazero.HostModuleBuilder{}
	add := func(f Host[V]) {
		b := builders[f.Module]
		if b == nil {
			b = r.NewHostModuleBuilder(f.Module)
			builders[f.Module] = b
		}
		call := f.Call
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, _ api.Module, stack []uint64) {
			call(Of[V](ctx), stack)
		}), types(f.Params), types(f.Results)).Export(f.Name)
	}
	for _, f := range functions {
		add(f)
	}
	add(Host[V]{Module: fuelModule, Name: fuelName, Call: func(vm V, _ []uint64) { outOfFuel(vm) }})
	for _, b := range builders {
		if _, err := b.Instantiate(ctx); err != nil {
			return err
		}
	}
	return nil
}

func types(s string) []api.ValueType {
	var out []api.ValueType
	for _, c := range s {
		t := api.ValueTypeI32
		if c == 'l' {
			t = api.ValueTypeI64
		}
		out = append(out, t)
	}
	return out
}

// vmKey is the key under which a vmContext answers itself.
type vmKey struct{}

// A vmContext is the context of every call into a VM, so that a host function
// finds it without a look-up.
type vmContext[V any] struct {
	context.Context
	vm V
}

// Context is that of every call into vm: host functions get vm from it.
func Context[V any](vm V) context.Context {
	return &vmContext[V]{context.Background(), vm}
}

// Value implements context.Context.
func (c *vmContext[V]) Value(key any) any {
	if key == (vmKey{}) {
		return c.vm
	}
	return c.Context.Value(key)
}

// Of is the VM whose Context that is.
func Of[V any](ctx context.Context) V {
	if c, ok := ctx.(*vmContext[V]); ok {
		return c.vm
	}
	return ctx.Value(vmKey{}).(V)
}
