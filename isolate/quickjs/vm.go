package quickjs

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

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
	// Large is told before more than LargeCopy bytes are moved between the guest's
	// memory and ours, which is done in one go.
	Large()
}

// LargeCopy is how many bytes are moved in less time than somebody who waits
// would notice: some 100 µs.
const LargeCopy = 256 << 10

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
	hooks Hooks
}

// A function is an export that we call: its place in exports.
type function int

const (
	fnInitialize function = iota
	fnQjsInit
	fnSetMaxStack
	fnSetLoader
	fnSetRejection
	fnSetGC
	fnRunGC
	fnMalloc
	fnFree
	fnEval
	fnCompile
	fnEvalBytecode
	fnCall
	fnRunJob
	fnJobPending
	fnIsException
	fnGetException
	fnThrow
	fnNewError
	fnSetProp
	fnNewString
	fnNewNumber
	fnNewBytes
	fnNewHostFunction
	fnText
	fnFreeText
	fnNumber
	fnFreeValue
	fnDupValue
	fnValuePtr
	fnTyped
	fnBuffer
	fnPropIndex
	fnIsString
	fnUndef
	fnNull
	fnTrueValue
	fnFalseValue
	fnContextPtr
)

var exports = [...]string{
	fnInitialize:      "_initialize",
	fnQjsInit:         "qjs_init",
	fnSetMaxStack:     "qjs_set_max_stack_size",
	fnSetLoader:       "qjs_set_module_loader",
	fnSetRejection:    "qjs_set_promise_rejection_handler",
	fnSetGC:           "qjs_set_gc_threshold",
	fnRunGC:           "qjs_run_gc",
	fnMalloc:          "wasm_malloc",
	fnFree:            "wasm_free",
	fnEval:            "qjs_eval",
	fnCompile:         "qjs_compile",
	fnEvalBytecode:    "qjs_eval_bytecode",
	fnCall:            "qjs_call",
	fnRunJob:          "qjs_execute_pending_job",
	fnJobPending:      "qjs_is_job_pending",
	fnIsException:     "qjs_is_exception",
	fnGetException:    "qjs_get_exception",
	fnThrow:           "qjs_throw",
	fnNewError:        "qjs_new_error",
	fnSetProp:         "qjs_set_prop_string",
	fnNewString:       "qjs_new_string",
	fnNewNumber:       "qjs_new_number",
	fnNewBytes:        "qjs_new_uint8_array",
	fnNewHostFunction: "qjs_new_host_function",
	fnText:            "qjs_get_string_len",
	fnFreeText:        "qjs_free_cstring",
	fnNumber:          "qjs_get_float64",
	fnFreeValue:       "qjs_free_value",
	fnDupValue:        "qjs_dup_value",
	fnValuePtr:        "qjs_get_value_ptr",
	fnTyped:           "qjs_get_typed_array_buffer",
	fnBuffer:          "qjs_get_array_buffer",
	fnPropIndex:       "qjs_get_prop_uint32",
	fnIsString:        "qjs_is_string",
	fnUndef:           "qjs_get_undefined",
	fnNull:            "qjs_get_null",
	fnTrueValue:       "qjs_get_true",
	fnFalseValue:      "qjs_get_false",
	fnContextPtr:      "qjs_get_context_ptr",
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

// invoke calls an export. What is returned of an i32 is as of wazero: only the
// low half of it means anything.
func (vm *VM) invoke(f function, params ...uint64) (uint64, error) {
	v, err := vm.inst.Call(vm.ctx, int(f), params...)
	if err != nil {
		return 0, vm.fail(&GuestError{Reason: "trap in " + exports[f], Err: err})
	}
	return v, nil
}

// get calls an export whose result is an i32.
func (vm *VM) get(f function, params ...uint64) (uint64, error) {
	v, err := vm.invoke(f, params...)
	return uint64(uint32(v)), err
}

// must is get within a host function.
func (vm *VM) must(f function, params ...uint64) uint64 {
	v, err := vm.get(f, params...)
	if err != nil {
		vm.abort(err)
	}
	return v
}

func (vm *VM) must0(f function, params ...uint64) { vm.must(f, params...) }

// reset makes the VM as new, or says why it cannot; see wasmvm.Instance.Restore.
func (vm *VM) reset() error {
	vm.hooks = nil
	_, err := vm.inst.Restore()
	return err
}

func (vm *VM) cool() error { return vm.inst.Cool() }

// trim gives back what is only there to be quicker.
func (vm *VM) trim() error { return vm.inst.Trim() }

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

// stackEnd is how near to its end the stack was used when a call did not fit: more
// than any function of JavaScript takes.
const stackEnd = 64 << 10

// StackSpent tells whether calls nested to the end of StackSize since the VM was
// clean. It cannot be told by the error alone, which the code can throw as well.
func (vm *VM) StackSpent() bool {
	top := vm.eng.state.Globals[0].Value // the stack pointer of the image, where nothing lies deeper
	if top < StackSize {
		return false
	}
	b, ok := vm.mod.Memory().Read(uint32(top-StackSize), stackEnd)
	return ok && slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}
