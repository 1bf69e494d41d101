package wasm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tetratelabs/wazero/api"

	"sandboxd/isolate/wasi"
	"sandboxd/isolate/wasmvm"
)

// Hooks answer what a run asks. They are called on the goroutine that called
// Do. An error ends the run: Do returns it.
type Hooks interface {
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
	// Call answers sandboxd.call; the answer is kept until it is read.
	Call(request []byte) (answer []byte, err error)
	// Result takes what sandboxd.result was given, Log a line.
	Result(value []byte) error
	Log(level int, message []byte) error
}

// A vm is one instance while it runs.
type vm struct {
	hooks  Hooks
	sys    wasi.System
	input  []byte
	answer []byte // of the last call, until it is read
	tables uint64 // what they can grow to
	held   uint64 // what tables, answer and files have of the limit
	limit  uint64

	inst   *wasmvm.Instance // nil before and after
	stack  api.MutableGlobal
	exited bool
	status uint32
	// fuel and memory are what the run has used when it is over.
	fuel   int64
	memory uint64
}

func newVM(hooks Hooks, job Job, tables uint64) *vm {
	v := &vm{hooks: hooks, input: job.Input, limit: job.Memory, tables: tables, held: tables}
	v.sys = wasi.System{Host: world{v}, Args: job.Args, Env: job.Env, Stdin: job.Input, Given: job.Files}
	return v
}

func (v *vm) attach(inst *wasmvm.Instance) error {
	stack, ok := inst.Mod.ExportedGlobal(stackExport).(api.MutableGlobal)
	if !ok {
		return errors.New("wasm: the module was not rewritten")
	}
	v.inst, v.stack, v.sys.Memory = inst, stack, inst.Mod.Memory()
	stack.Set(StackSize)
	inst.LimitMemory(v.limit, v.held)
	return nil
}

// hold lets the linear memory have what the host does not hold for the run, and
// ends the run if that is too little for what it has already.
func (v *vm) hold() {
	v.held = v.tables + v.sys.Bytes() + uint64(len(v.answer))
	v.inst.LimitMemory(v.limit, v.held)
	if used := v.held + v.inst.Mem.Size(); used > v.limit {
		v.abort(&MemoryError{Want: used, Limit: v.limit})
	}
}

// A MemoryError ends a run that wants more memory than its limit.
type MemoryError = wasmvm.MemoryError

// A TrapError says that the code trapped.
type TrapError struct {
	// Reason names the trap, as in "unreachable".
	Reason string
	// Stack has a function on each line, by the module's own names if it has
	// any: hostile text.
	Stack string
	// Exhausted says that calls nested beyond StackSize.
	Exhausted bool
}

func (e *TrapError) Error() string { return "wasm: trap: " + e.Reason }

// errExit is how proc_exit unwinds the guest, errStack how the end of the stack
// does.
var (
	errExit  = errors.New("the program exited")
	errStack = errors.New("no stack left")
)

// abort ends the run from within a host function: wazero unwinds the guest.
func (v *vm) abort(err error) { v.inst.Abort(err) }

// call calls an exported function.
func (v *vm) call(name string) (status uint32, err error) {
	f := v.inst.Mod.ExportedFunction(name)
	var stack [1]uint64
	err = f.CallWithStack(wasmvm.Context(v), stack[:])
	v.fuel, v.memory = v.inst.Fuel(), v.inst.Mem.Size()+v.held
	cause := v.inst.Err()
	switch {
	case v.exited:
		return v.status, nil
	case cause != nil && cause != errStack:
		return 0, located(cause, err)
	case err != nil:
		return 0, trap(cause, err)
	case len(f.Definition().ResultTypes()) > 0:
		status = uint32(stack[0])
	}
	return status, nil
}

// A StoppedError is why a run ended, with where it was.
type StoppedError struct {
	Err   error
	Stack string
}

func (e *StoppedError) Error() string { return e.Err.Error() }

func (e *StoppedError) Unwrap() error { return e.Err }

func located(cause, err error) error {
	if _, stack := split(err); stack != "" {
		return &StoppedError{Err: cause, Stack: stack}
	}
	return cause
}

// trap makes a TrapError of wazero's.
func trap(cause, err error) error {
	if cause == errStack {
		_, stack := split(err)
		return &TrapError{Reason: "call stack exhausted: the calls nest too deeply", Stack: stack, Exhausted: true}
	}
	reason, stack := split(err)
	return &TrapError{Reason: strings.TrimPrefix(reason, "wasm error: "), Stack: stack}
}

// maxFrames is how many frames of a stack are shown.
const maxFrames = 30

// split takes wazero's text apart: the first line says what, the rest is the
// stack, without our own frames.
func split(err error) (reason, stack string) {
	if err == nil {
		return "", ""
	}
	reason, rest, _ := strings.Cut(err.Error(), "wasm stack trace:\n")
	reason, _, _ = strings.Cut(reason, "\n")
	var lines []string
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, wasmvm.FuelExport+".") {
			continue
		}
		if len(lines) == maxFrames {
			lines = append(lines, "…")
			break
		}
		lines = append(lines, cut(strings.TrimPrefix(line, "."), 300))
	}
	return cut(reason, 300), strings.ToValidUTF8(strings.Join(lines, "\n"), "\uFFFD")
}

// instantiation explains why there is no instance.
func instantiation(err error) error {
	text := err.Error()
	if strings.Contains(text, "out of bounds") || strings.Contains(text, "data[") || strings.Contains(text, "element") {
		return &TrapError{Reason: "the module's data or elements do not fit its memory or table: " + cut(text, 200)}
	}
	return fmt.Errorf("wasm: instantiate: %w", err)
}

// Fuel is what the guest has used of it.
func (v *vm) Fuel() int64 {
	if v.inst == nil || v.inst.Err() == wasmvm.ErrClosed {
		return v.fuel
	}
	return v.inst.Fuel()
}

// Memory is what the run held of its memory limit when it ended, in bytes.
func (v *vm) Memory() uint64 { return v.memory }

// outOfFuel is called by the guest: no fuel is left, or no stack.
func (v *vm) outOfFuel() {
	if int32(v.stack.Get()) < 0 {
		v.abort(errStack)
	}
	v.inst.Refill()
	if err := v.hooks.Tick(); err != nil {
		v.abort(err)
	}
}

// charge takes fuel for what the host does for the guest.
func (v *vm) charge(units int64) {
	if v.inst.Charge(units) {
		v.outOfFuel()
	}
}

// cut shortens text at a rune's border.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
