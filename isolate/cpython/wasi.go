package cpython

import (
	"context"

	"github.com/tetratelabs/wazero"

	"sandboxd/isolate/wasi"
	"sandboxd/isolate/wasmvm"
)

// hostModules are all that the guest can import. What the guest's own file
// system, which has the standard library, does not answer goes to its wasi.System.
func hostModules(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder(wasi.Module)
	wasi.Export(b, func(ctx context.Context) *wasi.System { return &wasmvm.Of[*VM](ctx).sys })
	if _, err := b.Instantiate(ctx); err != nil {
		return err
	}
	return wasmvm.Export(ctx, r, nil, (*VM).outOfFuel)
}

// arguments of the interpreter: isolated from environment variables and
// directories, no site packages, no byte code files, UTF-8 everywhere.
var arguments = []string{"python", "-I", "-S", "-B", "-X", "utf8", "-c", bootScript}

// A world is the VM as its wasi.System sees it.
type world struct{ vm *VM }

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
func (w world) Exit(code uint32) { w.vm.abort(&ExitError{code}) }

// Abort implements wasi.Host.
func (w world) Abort(err error) { w.vm.abort(err) }

// Charge implements wasi.Host.
func (w world) Charge(units int64) { w.vm.charge(units) }

// Large implements wasi.Host.
func (w world) Large() { w.vm.hooks.Large() }

// Room implements wasi.Host.
func (w world) Room() int64 { return int64(w.vm.limit) - int64(w.vm.mem.Size()) }

// Held implements wasi.Host.
func (w world) Held(bytes int64) { w.vm.limitMemory(uint64(max(bytes, 0))) }

// message answers what was written to descriptor 0.
func (vm *VM) message(b []byte) {
	answer, err := vm.hooks.Message(b)
	if err != nil {
		vm.abort(err)
	}
	vm.sys.Stdin = framed(answer)
}
