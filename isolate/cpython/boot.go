package cpython

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"sandboxd/isolate/memimage"
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
	// Globals are the mutable globals, in the order of wasmbin's Info.
	Globals []uint64
}

// A Snapshot is a booted interpreter, for Engines in other processes.
type Snapshot struct {
	// Image is a sealed memfd. An Engine takes it over.
	Image *os.File
	State State
}

// Boot compiles, so that an Engine in a process without the right to write to
// o.CacheDir finds the code there, and boots.
func Boot(ctx context.Context, o Options) (*Snapshot, error) {
	e := &Engine{opts: o}
	e.opts.Quantum = DefaultQuantum
	defer e.Close()
	if err := e.compile(ctx); err != nil {
		return nil, err
	}
	if err := e.takeImage(ctx); err != nil {
		return nil, err
	}
	fd, err := dup(e.img.File())
	if err != nil {
		return nil, err
	}
	return &Snapshot{Image: fd, State: e.state}, nil
}

// takeImage boots an interpreter and keeps its memory, or opens the one that
// was given.
func (e *Engine) takeImage(ctx context.Context) (err error) {
	data := e.data
	e.data = nil
	if s := e.opts.Snapshot; s != nil {
		e.state = s.State
		if len(s.State.Globals) != len(e.info.ExportedGlobals) {
			return errors.New("cpython: the snapshot is of another module")
		}
		e.img, err = memimage.Open(s.Image)
		return err
	}
	mem := memimage.NewMemory(nil, e.opts.MaxMemory)
	mod, err := e.instantiate(ctx, mem)
	if err != nil {
		return err
	}
	defer mod.Close(ctx)
	vm, err := e.wrap(mod, mem)
	if err != nil {
		return err
	}
	boot := &bootHooks{vm: vm}
	vm.hooks = boot
	vm.refill(e.opts.Quantum)
	if !mod.Memory().Write(0, data) {
		return errors.New("cpython: the data does not fit the memory")
	}
	_, err = mod.ExportedFunction("_start").Call(vm.ctx)
	if boot.img == nil {
		return fmt.Errorf("cpython: boot: no image was taken: %w\n%s", errors.Join(vm.cause, err), boot.output)
	}
	e.img, e.state = boot.img, boot.state
	return nil
}

// bootHooks answer while the image is made: a clock that stands at zero, no
// randomness.
type bootHooks struct {
	vm     *VM
	output []byte
	ready  bool
	state  State
	img    *memimage.Image
}

// errImage ends the boot when the image was taken.
var errImage = errors.New("the image was taken")

// Message implements Hooks: the script has done its part and says where things
// are. The next thing that it does is to ask for the time.
func (h *bootHooks) Message(b []byte) ([]byte, error) {
	var at struct{ Dispatch, Tuple uint32 }
	if err := json.Unmarshal(b, &at); err != nil {
		return nil, fmt.Errorf("cpython: boot says %q: %w", b, err)
	}
	h.state.Dispatch, h.state.Tuple, h.ready = at.Dispatch, at.Tuple, true
	return nil, nil
}

// Now implements Hooks.
func (h *bootHooks) Now() (realtime, monotonic int64, err error) {
	if !h.ready {
		return 0, 0, nil
	}
	return 0, 0, errors.Join(errImage, h.take())
}

// take keeps the memory and the globals as they are in the middle of a call.
func (h *bootHooks) take() error {
	mem := h.vm.mod.Memory()
	// A PyObject is its count and its type.
	const obType, tpCall = 4, 64
	typ, ok1 := mem.ReadUint32Le(h.state.Dispatch + obType)
	call, ok2 := mem.ReadUint32Le(typ + tpCall)
	all, ok3 := mem.Read(0, mem.Size())
	if !ok1 || !ok2 || !ok3 {
		return errors.New("cpython: dispatch is not where the script says")
	}
	h.state.Call = call
	for _, g := range h.vm.globs {
		h.state.Globals = append(h.state.Globals, g.Get())
	}
	var err error
	h.img, err = memimage.New(all)
	return err
}

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

// Sleep implements Hooks.
func (h *bootHooks) Sleep(int64) error { return nil }

// warmUp runs Options.Warm twice: once so that wazero has what it needs, and
// once to see which pages a call uses.
func (e *Engine) warmUp(ctx context.Context) error {
	if e.opts.Warm == nil {
		return nil
	}
	for range 2 {
		vm, err := e.newVM(ctx)
		if err != nil {
			return err
		}
		err = e.opts.Warm(ctx, vm)
		if err == nil {
			err = e.img.Learn(vm.mem)
		}
		vm.close()
		if err != nil {
			return fmt.Errorf("cpython: warm up: %w", err)
		}
	}
	return nil
}
