package cpython

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental/table"
	"golang.org/x/sys/unix"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasi"
	"sandboxd/isolate/wasmvm"
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
	// Large is told before wasi.LargeCopy bytes or more are moved in one go.
	Large()
}

// A VM is one interpreter with its own memory. It is not safe for concurrent
// use.
type VM struct {
	eng   *Engine
	inst  *wasmvm.Instance
	mod   api.Module       // of inst
	mem   *memimage.Memory // of inst
	ctx   context.Context
	call  api.Function // tp_call of the function type; nil: to be looked up
	hooks Hooks

	sys   wasi.System // descriptor 0 is for messages
	limit uint64      // of linear memory and files together
	busy  bool
}

// newVM makes a VM over the image.
func (e *Engine) newVM(ctx context.Context) (*VM, error) {
	return e.over(ctx, memimage.NewMemory(e.img, e.opts.MaxMemory))
}

func (e *Engine) over(ctx context.Context, mem *memimage.Memory) (*VM, error) {
	inst, err := e.code.New(ctx, mem, &e.state.State, e.opts.Quantum)
	if err != nil {
		return nil, fmt.Errorf("cpython: %w", err)
	}
	vm := &VM{eng: e, inst: inst, mod: inst.Mod, mem: mem}
	vm.ctx = wasmvm.Context(vm)
	vm.sys = wasi.System{Host: world{vm}, Memory: vm.mod.Memory(), Message: vm.message}
	return vm, nil
}

// A MemoryError ends a VM whose memory would have grown beyond its limit.
type MemoryError = wasmvm.MemoryError

// An ExitError says that the guest ended itself: os._exit, or a fatal error of
// the interpreter.
type ExitError struct{ Code uint32 }

func (e *ExitError) Error() string { return fmt.Sprintf("cpython: the process ended with %d", e.Code) }

// A CrashError says that the guest trapped. Code can do that to its own
// interpreter, by recursion in C or by made-up byte code.
type CrashError struct{ Err error }

func (e *CrashError) Error() string { return "cpython: the interpreter crashed: " + e.Err.Error() }

func (e *CrashError) Unwrap() error { return e.Err }

// abort ends the VM from within a host function: wazero unwinds the guest.
func (vm *VM) abort(err error) { vm.inst.Abort(err) }

// Err says why the VM is dead, nil while it lives.
func (vm *VM) Err() error { return vm.inst.Err() }

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
	if err := vm.Err(); err != nil {
		return err
	}
	if job.Memory < vm.mem.Size() || job.Memory > vm.mem.Reserved() {
		return fmt.Errorf("cpython: memory limit %d is not within %d and %d", job.Memory, vm.mem.Size(), vm.mem.Reserved())
	}
	vm.hooks, vm.limit, vm.sys.Stdin, vm.sys.Given = hooks, job.Memory, framed(job.Message), job.Files
	vm.limitMemory(0)
	s := &vm.eng.state
	stack := [3]uint64{uint64(s.Dispatch), uint64(s.Tuple), 0}
	if vm.call == nil {
		vm.call = table.LookupFunction(vm.mod, 0, s.Call, []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}, []api.ValueType{api.ValueTypeI32})
	}
	vm.busy = true
	err := vm.call.CallWithStack(vm.ctx, stack[:])
	vm.busy = false
	switch {
	case err != nil:
		return vm.inst.Fail(&CrashError{err})
	case vm.Err() == nil && uint32(stack[0]) == 0:
		// An exception left dispatch, which catches all of them.
		return vm.inst.Fail(&CrashError{errors.New("dispatch raised an exception")})
	}
	return vm.Err()
}

// limitMemory lets the linear memory have what files leave of the limit.
func (vm *VM) limitMemory(files uint64) { vm.inst.LimitMemory(vm.limit, files) }

// Fuel is what the guest has used of it.
func (vm *VM) Fuel() int64 { return vm.inst.Fuel() }

// Memory is the size of the linear memory, which never shrinks, and of files.
func (vm *VM) Memory() uint64 {
	return vm.mem.Size() + vm.sys.Bytes()
}

// outOfFuel is called by the guest.
func (vm *VM) outOfFuel() {
	vm.inst.Refill()
	if err := vm.hooks.Tick(); err != nil {
		vm.abort(err)
	}
}

// charge takes fuel for what the host does for the guest.
func (vm *VM) charge(units int64) {
	if vm.inst.Charge(units) {
		vm.outOfFuel()
	}
}

// reset makes the VM as new, with its files and what is unread on descriptor 0,
// or says why it cannot; see wasmvm.Instance.Restore.
func (vm *VM) reset() error {
	if vm.busy && vm.Err() == nil {
		return errors.New("cpython: a call is under way")
	}
	vm.forget()
	far, err := vm.inst.Restore()
	if far {
		vm.call = nil
	}
	return err
}

// forget drops what was given for one call.
func (vm *VM) forget() {
	vm.hooks = nil
	vm.sys.Reset()
}

func (vm *VM) cool() error {
	vm.call = nil
	return vm.inst.Cool()
}

// trim gives back what is only there to be quicker.
func (vm *VM) trim() error {
	vm.call = nil
	return vm.inst.Trim()
}

func (vm *VM) close() {
	vm.forget()
	vm.inst.Close()
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
