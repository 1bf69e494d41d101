package wasm

import (
	"context"

	"github.com/tetratelabs/wazero"

	"sandboxd/isolate/wasi"
	"sandboxd/isolate/wasmvm"
)

// hostModule is what modules import our functions from.
const hostModule = "sandboxd"

// A hostFunc is one of them. Its parameters are i32, as its result is if it has
// one.
type hostFunc struct {
	name   string
	params string
	void   bool
	call   func(v *vm, a []uint64) uint64
}

var functions = []hostFunc{
	{"input", "ii", false, func(v *vm, a []uint64) uint64 { return v.copyOut(a, v.input, len(v.input)) }},
	{"call", "ii", false, (*vm).hostCall},
	{"read", "ii", false, (*vm).read},
	{"result", "ii", true, (*vm).result},
	{"log", "iii", true, (*vm).log},
}

func hostModules(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder(wasi.Module)
	wasi.Export(b, func(ctx context.Context) *wasi.System { return &wasmvm.Of[*vm](ctx).sys })
	if _, err := b.Instantiate(ctx); err != nil {
		return err
	}
	var hosts []wasmvm.Host[*vm]
	for _, f := range functions {
		h := wasmvm.Host[*vm]{Module: hostModule, Name: f.name, Params: f.params, Call: func(v *vm, stack []uint64) {
			for i := range len(f.params) {
				stack[i] &= 1<<32 - 1 // the upper half is undefined
			}
			if n := f.call(v, stack); !f.void {
				stack[0] = n
			}
		}}
		if !f.void {
			h.Results = "i"
		}
		hosts = append(hosts, h)
	}
	return wasmvm.Export(ctx, r, hosts, (*vm).outOfFuel)
}

// text is the guest's memory at an address; outside of it the run ends.
func (v *vm) text(p, n uint64) []byte {
	b, ok := v.sys.Memory.Read(uint32(p), uint32(n))
	if !ok {
		v.abort(&TrapError{Reason: "an address and length given to " + hostModule + " are not inside the memory"})
	}
	v.charge(int64(n / 4))
	return b
}

// copyOut copies what fits of b and answers n.
func (v *vm) copyOut(a []uint64, b []byte, n int) uint64 {
	copy(v.text(a[0], min(a[1], uint64(len(b)))), b)
	return uint64(uint32(n))
}

func (v *vm) hostCall(a []uint64) uint64 {
	answer, err := v.hooks.Call(v.text(a[0], a[1]))
	if err != nil {
		v.abort(err)
	}
	v.answer = answer
	v.hold()
	return uint64(len(answer))
}

func (v *vm) read(a []uint64) uint64 {
	n := min(a[1], uint64(len(v.answer)))
	v.copyOut(a, v.answer, 0)
	v.answer = nil
	v.hold()
	return n
}

func (v *vm) result(a []uint64) uint64 {
	if err := v.hooks.Result(v.text(a[0], a[1])); err != nil {
		v.abort(err)
	}
	return 0
}

func (v *vm) log(a []uint64) uint64 {
	if err := v.hooks.Log(int(int32(a[0])), v.text(a[1], a[2])); err != nil {
		v.abort(err)
	}
	return 0
}

// A world is the vm as its wasi.System sees it.
type world struct{ vm *vm }

var _ wasi.Host = world{}

// Now implements wasi.Host.
func (w world) Now() (realtime, monotonic int64, err error) { return w.vm.hooks.Now() }

// Sleep implements wasi.Host.
func (w world) Sleep(ns int64) error { return w.vm.hooks.Sleep(ns) }

// Random implements wasi.Host.
func (w world) Random(b []byte) { w.vm.hooks.Random(b) }

// Write implements wasi.Host.
func (w world) Write(fd int, b []byte) error { return w.vm.hooks.Write(fd, b) }

// Exit implements wasi.Host.
func (w world) Exit(code uint32) {
	w.vm.exited, w.vm.status = true, code
	w.vm.abort(errExit)
}

// Abort implements wasi.Host.
func (w world) Abort(err error) { w.vm.abort(err) }

// Charge implements wasi.Host.
func (w world) Charge(units int64) { w.vm.charge(units) }

// Large implements wasi.Host: a module has its worker to itself.
func (w world) Large() {}

// Room implements wasi.Host.
func (w world) Room() int64 {
	v := w.vm
	return int64(v.limit) - int64(v.inst.Mem.Size()) - int64(v.tables) - int64(len(v.answer))
}

// Held implements wasi.Host.
func (w world) Held(int64) { w.vm.hold() }
