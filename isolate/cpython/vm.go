package cpython

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental/table"
	"golang.org/x/sys/unix"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasi"
)

// Hooks answer what a VM asks while it runs. They are called on the goroutine
// that called Run. An error ends the VM's life: Run returns it.
type Hooks interface {
	// Message is one message of the dispatch function, or of code that writes
	// to descriptor 0 itself. The answer is what the guest reads next.
	Message(b []byte) ([]byte, error)
	// Write is output on descriptor 1 or 2. b is good until Write returns.
	Write(fd int, b []byte) error
	// Tick is called when the fuel of one quantum is used up. Compiled code
	// cannot be preempted: it is Tick that lets others run.
	Tick() error
	// Now gives the wall clock and a monotonic clock in nanoseconds.
	Now() (realtime, monotonic int64, err error)
	// Sleep returns after so many nanoseconds.
	Sleep(ns int64) error
	// Random fills b.
	Random(b []byte)
}

// A VM is one interpreter with its own memory. It is not safe for concurrent
// use.
type VM struct {
	eng   *Engine
	mod   api.Module
	mem   *memimage.Memory
	ctx   *vmContext
	call  api.Function // tp_call of the function type
	fuel  api.MutableGlobal
	globs []api.MutableGlobal
	hooks Hooks

	sys     wasi.System // descriptor 0 is for messages
	limit   uint64      // of linear memory and files together
	busy    bool
	spent   int64 // fuel of finished quanta
	granted int64 // fuel given with the last refill
	cause   error // why the VM is dead
	live    bool  // is among the live ones
	// idleSince is when the engine took the VM back; zero once it was trimmed.
	idleSince time.Time
}

// newVM makes a VM over the image.
func (e *Engine) newVM(ctx context.Context) (*VM, error) {
	mem := memimage.NewMemory(e.img, e.opts.MaxMemory)
	mod, err := e.instantiate(ctx, mem)
	if err != nil {
		return nil, err
	}
	vm, err := e.wrap(mod, mem)
	if err != nil {
		mod.Close(ctx)
		return nil, err
	}
	if have := uint64(mod.Memory().Size()); have < e.img.Size() {
		if _, ok := mod.Memory().Grow(uint32((e.img.Size() - have) / wasmPage)); !ok {
			vm.close()
			return nil, errors.New("cpython: the image does not fit the memory")
		}
	}
	vm.call = table.LookupFunction(mod, 0, e.state.Call,
		[]api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}, []api.ValueType{api.ValueTypeI32})
	vm.restoreGlobals()
	e.count(1, 1)
	vm.live = true
	return vm, nil
}

func (e *Engine) wrap(mod api.Module, mem *memimage.Memory) (*VM, error) {
	vm := &VM{eng: e, mod: mod, mem: mem}
	vm.ctx = &vmContext{Context: context.Background(), vm: vm}
	vm.sys = wasi.System{Host: world{vm}, Memory: mod.Memory(), Message: vm.message}
	for _, g := range e.state.Globals {
		mg, ok := mod.ExportedGlobal(g.Name).(api.MutableGlobal)
		if !ok {
			return nil, fmt.Errorf("cpython: global %s is not there", g.Name)
		}
		vm.globs = append(vm.globs, mg)
	}
	if e.state.Fuel != "" {
		fuel, ok := mod.ExportedGlobal(e.state.Fuel).(api.MutableGlobal)
		if !ok {
			return nil, fmt.Errorf("cpython: global %s is not there", e.state.Fuel)
		}
		vm.fuel = fuel
	}
	return vm, nil
}

func (vm *VM) restoreGlobals() {
	for i, g := range vm.globs {
		g.Set(vm.eng.state.Globals[i].Value)
	}
	vm.spent = 0
	vm.refill(vm.eng.opts.Quantum)
}

func (vm *VM) refill(n int64) {
	vm.granted = n
	if vm.fuel != nil {
		vm.fuel.Set(uint64(n))
	}
}

// A MemoryError ends a VM whose memory would have grown beyond its limit.
type MemoryError struct{ Want, Limit uint64 }

func (e *MemoryError) Error() string {
	return fmt.Sprintf("cpython: memory of %d bytes wanted, %d allowed", e.Want, e.Limit)
}

// An ExitError says that the guest ended itself: os._exit, or a fatal error of
// the interpreter.
type ExitError struct{ Code uint32 }

func (e *ExitError) Error() string { return fmt.Sprintf("cpython: the process ended with %d", e.Code) }

// A CrashError says that the guest trapped. Code can do that to its own
// interpreter, by recursion in C or by made-up byte code.
type CrashError struct{ Err error }

func (e *CrashError) Error() string { return "cpython: the interpreter crashed: " + e.Err.Error() }

func (e *CrashError) Unwrap() error { return e.Err }

// aborted is what abort panics with.
type aborted struct{}

func (aborted) Error() string { return "cpython: aborted" }

// abort ends the VM from within a host function: wazero unwinds the guest.
func (vm *VM) abort(err error) {
	if vm.cause == nil {
		vm.cause = err
	}
	panic(aborted{})
}

// Err says why the VM is dead, nil while it lives.
func (vm *VM) Err() error { return vm.cause }

// A Job is what a VM is to run.
type Job struct {
	// Message is read by the dispatch function from descriptor 0.
	Message []byte
	// Files are what the file system has beside an empty /tmp, by their paths
	// without a slash in front.
	Files map[string]string
	// Memory is the limit of the linear memory and the files together.
	Memory uint64
}

// Run gives a clean VM to hooks and calls the dispatch function.
func (vm *VM) Run(hooks Hooks, job Job) error {
	if vm.cause != nil {
		return vm.cause
	}
	if job.Memory < vm.mem.Size() || job.Memory > vm.mem.Reserved() {
		return fmt.Errorf("cpython: memory limit %d is not within %d and %d", job.Memory, vm.mem.Size(), vm.mem.Reserved())
	}
	vm.hooks, vm.limit, vm.sys.Stdin, vm.sys.Given = hooks, job.Memory, framed(job.Message), job.Files
	vm.limitMemory(0)
	s := &vm.eng.state
	stack := [3]uint64{uint64(s.Dispatch), uint64(s.Tuple), 0}
	vm.busy = true
	err := vm.call.CallWithStack(vm.ctx, stack[:])
	vm.busy = false
	switch {
	case vm.cause != nil:
	case err != nil:
		vm.cause = &CrashError{err}
	case uint32(stack[0]) == 0:
		// An exception left dispatch, which catches all of them.
		vm.cause = &CrashError{errors.New("dispatch raised an exception")}
	}
	return vm.cause
}

// limitMemory lets the linear memory have what files leave of the limit.
func (vm *VM) limitMemory(files uint64) {
	vm.mem.SetLimit(vm.limit-min(files, vm.limit), func(want uint64) {
		vm.abort(&MemoryError{Want: want + files, Limit: vm.limit})
	})
}

// Fuel is what the guest has used of it.
func (vm *VM) Fuel() int64 {
	if vm.fuel == nil {
		return 0
	}
	return vm.spent + vm.granted - int64(vm.fuel.Get())
}

// Memory is the size of the linear memory, which never shrinks, and of files.
func (vm *VM) Memory() uint64 {
	return vm.mem.Size() + vm.sys.Bytes()
}

// outOfFuel is called by the guest.
func (vm *VM) outOfFuel() {
	vm.spent += vm.granted - int64(vm.fuel.Get())
	vm.refill(vm.eng.opts.Quantum)
	if err := vm.hooks.Tick(); err != nil {
		vm.abort(err)
	}
}

// charge takes fuel for what the host does for the guest.
func (vm *VM) charge(units int64) {
	if vm.fuel == nil {
		return
	}
	left := int64(vm.fuel.Get()) - units
	vm.fuel.Set(uint64(left))
	if left < 0 {
		vm.outOfFuel()
	}
}

// reset makes the VM as new, or says why it cannot. Everything that a call can
// have changed is: the linear memory and its size, the mutable globals, the
// files, and what is unread on descriptor 0. The module has no table or passive data that
// code could change (resettable). A VM that was ended in the middle is not
// reused: its stack was unwound from outside.
func (vm *VM) reset() error {
	if vm.cause != nil {
		return vm.cause
	}
	if vm.busy {
		return errors.New("cpython: a call is under way")
	}
	vm.hooks = nil
	vm.sys.Reset()
	if err := vm.mem.Reset(); err != nil {
		return err
	}
	vm.restoreGlobals()
	return nil
}

func (vm *VM) close() {
	if vm.cause == nil {
		vm.cause = ErrClosed
	}
	vm.hooks = nil
	vm.sys.Reset()
	vm.mod.Close(context.Background())
	if vm.live {
		vm.live = false
		vm.eng.count(0, -1)
	}
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cpython: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// framed is a message with its length in front.
func framed(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...)
}
