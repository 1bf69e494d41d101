package wasmbin

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

var testOptions = Options{
	Meter: true, FuelExport: "sandboxd_fuel",
	OutOfFuelModule: "sandboxd", OutOfFuelName: "out_of_fuel",
}

var errOutOfFuel = errors.New("out of fuel")

// A host runs modules and hands out fuel in quanta until budget is spent.
type host struct {
	t        testing.TB
	ctx      context.Context
	rt       wazero.Runtime
	quantum  int64
	budget   int64
	given    int64
	refills  int
	imported []uint64 // arguments that env.note received
	onRefill func(n int)
	onNote   func()
	stop     atomic.Bool
}

func newHost(t testing.TB) *host {
	ctx := t.Context()
	h := &host{t: t, ctx: ctx, quantum: 10000, budget: 1 << 62}
	cfg := wazero.NewRuntimeConfigCompiler().WithMemoryLimitPages(1024)
	h.rt = wazero.NewRuntimeWithConfig(ctx, cfg)
	t.Cleanup(func() { h.rt.Close(context.WithoutCancel(ctx)) })
	_, err := h.rt.NewHostModuleBuilder("sandboxd").NewFunctionBuilder().
		WithGoModuleFunction(api.GoModuleFunc(h.outOfFuel), nil, nil).Export("out_of_fuel").
		Instantiate(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.rt.NewHostModuleBuilder("env").NewFunctionBuilder().
		WithGoModuleFunction(api.GoModuleFunc(func(_ context.Context, _ api.Module, stack []uint64) {
			// The upper half of an i32's slot is undefined.
			h.imported = append(h.imported, uint64(uint32(stack[0])))
			if h.onNote != nil {
				h.onNote()
			}
			stack[0] = uint64(uint32(stack[0]) + 1)
		}), []api.ValueType{api.ValueTypeI32}, []api.ValueType{api.ValueTypeI32}).Export("note").
		Instantiate(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) outOfFuel(_ context.Context, m api.Module, _ []uint64) {
	if h.given >= h.budget || h.stop.Load() {
		panic(errOutOfFuel)
	}
	h.refills++
	if h.onRefill != nil {
		h.onRefill(h.refills)
	}
	g := m.ExportedGlobal("sandboxd_fuel").(api.MutableGlobal)
	n := min(h.quantum, h.budget-h.given)
	h.given += n
	g.Set(g.Get() + uint64(n))
}

// used is the fuel that m has used.
func (h *host) used(m api.Module) int64 {
	return h.given - int64(m.ExportedGlobal("sandboxd_fuel").Get())
}

func (h *host) instantiate(wasm []byte) api.Module {
	h.t.Helper()
	m, err := h.rt.InstantiateWithConfig(h.ctx, wasm, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		h.t.Fatalf("instantiate: %v", err)
	}
	return m
}

func metered(t testing.TB, wasm []byte) []byte {
	t.Helper()
	out, _, err := Rewrite(wasm, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
