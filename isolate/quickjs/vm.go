package quickjs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tetratelabs/wazero/api"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasmvm"
)

// Hooks answer what a VM asks while it runs. They are called on the goroutine
// that called the VM. An error from Call or Tick ends the VM's life: the call
// into it returns that error and the VM takes no other.
type Hooks interface {
	// Call is a call of the function that the prelude was given. A zero Value
	// is undefined.
	Call(args *Args) (Value, error)
	// Tick is called when the fuel of one quantum is used up. It should yield
	// now and then.
	Tick() error
	// Normalize resolves a module specifier; Load gives a module's source. The
	// code sees the error's text.
	Normalize(base, specifier string) (string, error)
	Load(name string) (string, error)
	// Rejected is told of a rejected promise that nobody handles, and again,
	// with handled, when somebody does. promise identifies it; reason may be
	// used until Rejected returns.
	Rejected(promise, reason Value, handled bool)
	// Now gives the wall clock and a monotonic clock in nanoseconds.
	Now() (realtime, monotonic int64)
	// Random fills b.
	Random(b []byte)
}

// A Value is a JavaScript value that the VM keeps for us until Free.
type Value uint32

// A VM is one interpreter with its own memory. It is not safe for concurrent
// use.
type VM struct {
	eng   *Engine
	inst  *wasmvm.Instance
	mod   api.Module       // of inst
	mem   *memimage.Memory // of inst
	ctx   context.Context
	fn    functions
	hooks Hooks
	depth int // calls into the guest under way
}

// A function is an export with the stack that its calls run on. While it is
// busy, a nested call needs a stack of its own.
type function struct {
	api.Function
	name string
	busy bool
}

type functions struct {
	initialize, qjsInit, setMaxStack, setLoader, setRejection, setGC, runGC *function
	malloc, free                                                            *function
	eval, compile, evalBytecode, call, runJob                               *function
	isException, getException, throw, newError, setProp                     *function
	newString, newNumber, newBytes, newHostFunction                         *function
	text, freeText, number, freeValue, dupValue, valuePtr                   *function
	typed, buffer, propIndex, isString                                      *function
	undef, null, trueValue, falseValue, contextPtr                          *function
}

func (fs *functions) all() map[string]**function {
	return map[string]**function{
		"_initialize": &fs.initialize, "qjs_init": &fs.qjsInit,
		"qjs_set_max_stack_size": &fs.setMaxStack, "qjs_set_module_loader": &fs.setLoader,
		"qjs_set_promise_rejection_handler": &fs.setRejection,
		"qjs_set_gc_threshold":              &fs.setGC, "qjs_run_gc": &fs.runGC,
		"wasm_malloc": &fs.malloc, "wasm_free": &fs.free,
		"qjs_compile": &fs.compile, "qjs_eval_bytecode": &fs.evalBytecode,
		"qjs_eval": &fs.eval, "qjs_call": &fs.call, "qjs_execute_pending_job": &fs.runJob,
		"qjs_is_exception": &fs.isException, "qjs_get_exception": &fs.getException,
		"qjs_throw": &fs.throw, "qjs_new_error": &fs.newError, "qjs_set_prop_string": &fs.setProp,
		"qjs_new_string": &fs.newString, "qjs_new_number": &fs.newNumber,
		"qjs_new_uint8_array": &fs.newBytes, "qjs_new_host_function": &fs.newHostFunction,
		"qjs_get_string_len": &fs.text, "qjs_free_cstring": &fs.freeText,
		"qjs_get_float64": &fs.number, "qjs_free_value": &fs.freeValue,
		"qjs_dup_value": &fs.dupValue, "qjs_get_value_ptr": &fs.valuePtr,
		"qjs_get_typed_array_buffer": &fs.typed, "qjs_get_array_buffer": &fs.buffer,
		"qjs_get_prop_uint32": &fs.propIndex, "qjs_is_string": &fs.isString,
		"qjs_get_undefined": &fs.undef, "qjs_get_null": &fs.null,
		"qjs_get_true": &fs.trueValue, "qjs_get_false": &fs.falseValue,
		"qjs_get_context_ptr": &fs.contextPtr,
	}
}

// scratchSize is the size of the guest buffer for results by reference.
const scratchSize = 64

// newVM makes a VM over the image.
func (e *Engine) newVM(ctx context.Context) (*VM, error) {
	return e.over(ctx, memimage.NewMemory(e.img, e.opts.MaxMemory))
}

func (e *Engine) over(ctx context.Context, mem *memimage.Memory) (*VM, error) {
	inst, err := e.code.New(ctx, mem, &e.state, e.opts.Quantum)
	if err != nil {
		return nil, fmt.Errorf("quickjs: %w", err)
	}
	vm := &VM{eng: e, inst: inst, mod: inst.Mod, mem: mem}
	vm.ctx = wasmvm.Context(vm)
	for name, slot := range vm.fn.all() {
		// The stack of a call is allocated with its first use, see invoke.
		*slot = &function{name: name}
	}
	return vm, nil
}

// A MemoryError ends a VM whose memory would have grown beyond its limit.
type MemoryError = wasmvm.MemoryError

// A GuestError says that the interpreter did what a sound one does not: it
// trapped, or gave a pointer outside its memory.
type GuestError struct {
	Reason string
	Err    error
}

func (e *GuestError) Error() string {
	if e.Err != nil {
		return "quickjs: " + e.Reason + ": " + e.Err.Error()
	}
	return "quickjs: " + e.Reason
}

func (e *GuestError) Unwrap() error { return e.Err }

func errGuest(reason string) error { return &GuestError{Reason: reason} }

// abort ends the VM from within a host function: wazero unwinds the guest.
func (vm *VM) abort(err error) { vm.inst.Abort(err) }

// fail ends the VM and says why it is dead.
func (vm *VM) fail(err error) error { return vm.inst.Fail(err) }

// Err says why the VM is dead, nil while it lives.
func (vm *VM) Err() error { return vm.inst.Err() }

// Begin gives a clean VM to hooks. memory is the limit of the linear memory,
// seed that of Math.random.
func (vm *VM) Begin(hooks Hooks, memory, seed uint64) error {
	if memory < vm.mem.Size() || memory > vm.mem.Reserved() {
		return fmt.Errorf("quickjs: memory limit %d is not within %d and %d", memory, vm.mem.Size(), vm.mem.Reserved())
	}
	vm.hooks = hooks
	vm.inst.LimitMemory(memory, 0)
	if seed == 0 {
		seed = 1 // the generator's only fixed point
	}
	if !vm.mod.Memory().WriteUint64Le(vm.eng.boot.random, seed) {
		return errGuest("random state outside its memory")
	}
	return nil
}

// Fuel is what the guest has used of it.
func (vm *VM) Fuel() int64 { return vm.inst.Fuel() }

// Charge counts work that a Hook did for the guest as units of its fuel. If that
// is used up, Hooks.Tick is asked whether the VM may go on.
func (vm *VM) Charge(units int64) {
	if vm.inst.Charge(units) {
		vm.outOfFuel()
	}
}

// Memory is the size of the linear memory, which never shrinks.
func (vm *VM) Memory() uint64 { return vm.mem.Size() }

// outOfFuel is called by the guest. It is also what keeps one VM from stopping
// the garbage collector and its neighbours: compiled code cannot be preempted,
// but this function can.
func (vm *VM) outOfFuel() {
	vm.inst.Refill()
	if vm.hooks != nil {
		if err := vm.hooks.Tick(); err != nil {
			vm.abort(err)
		}
	}
}

// invoke calls an export; stack holds the parameters and then the result.
func (vm *VM) invoke(f *function, stack []uint64) error {
	if err := vm.inst.Err(); err != nil {
		return err
	}
	target := f.Function
	if target == nil || f.busy {
		target = vm.mod.ExportedFunction(f.name)
		if target == nil {
			return vm.fail(errGuest("no export " + f.name))
		}
		if f.Function == nil {
			f.Function = target
		}
	}
	nested := f.busy
	f.busy = true
	vm.depth++
	err := target.CallWithStack(vm.ctx, stack)
	vm.depth--
	f.busy = nested
	if err != nil {
		return vm.fail(&GuestError{Reason: "trap in " + f.name, Err: err})
	}
	return vm.inst.Err()
}

// get calls an export whose result is an i32. Only the low half of a slot with
// an i32 means anything.
func (vm *VM) get(f *function, params ...uint64) (uint64, error) {
	var stack [6]uint64
	copy(stack[:], params)
	err := vm.invoke(f, stack[:])
	return uint64(uint32(stack[0])), err
}

// must is get within a host function.
func (vm *VM) must(f *function, params ...uint64) uint64 {
	v, err := vm.get(f, params...)
	if err != nil {
		vm.abort(err)
	}
	return v
}

func (vm *VM) must0(f *function, params ...uint64) { vm.must(f, params...) }

// reset makes the VM as new, or says why it cannot; see wasmvm.Instance.Restore.
func (vm *VM) reset() error {
	if vm.depth != 0 && vm.inst.Err() == nil {
		return errors.New("quickjs: a call is under way")
	}
	vm.hooks = nil
	return vm.inst.Restore()
}

func (vm *VM) close() {
	vm.hooks = nil
	vm.inst.Close()
}

// words reads little-endian words at p.
func (vm *VM) words(p uint32, out []uint32) error {
	b, ok := vm.mod.Memory().Read(p, uint32(4*len(out)))
	if !ok {
		return vm.fail(errGuest("pointer outside its memory"))
	}
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return nil
}
