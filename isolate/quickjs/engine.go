package quickjs

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/tetratelabs/wazero"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasmbin"
	"sandboxd/isolate/wasmvm"
)

// Options of an Engine.
type Options struct {
	// Wasm is quickjs-wasi's binary.
	Wasm []byte
	// CacheDir keeps the compiled code between starts; empty: none.
	CacheDir string
	// Prelude is a script whose value is a function. It is called once, before
	// the image is taken, with a function that reaches Hooks.Call, and returns
	// an array of functions, which VM.CallEntry calls by index.
	Prelude string
	// Warm are run on a clean VM each, before the first Get, so that it is known
	// what every call writes.
	Warm []func(ctx context.Context, vm *VM) error
	// MaxMemory is the largest linear memory that any VM may have.
	MaxMemory uint64
	// Quantum is the fuel between two calls of Hooks.Tick; 0 means
	// DefaultQuantum.
	Quantum int64
	// Idle is how many clean VMs are kept; 0 means two per core. IdleFor is how
	// long one more than these is kept, and any of them ready for a call at
	// once; 0 means wasmvm.DefaultTrimAfter.
	Idle    int
	IdleFor time.Duration
	// Unmetered leaves the countdown out. For measurements only.
	Unmetered bool
}

// StackSize is what calls of JavaScript may nest to, in bytes of the guest's
// stack. What goes beyond throws a RangeError.
const StackSize = 512 << 10

// DefaultQuantum is 60 to 200 µs of work.
const DefaultQuantum = wasmvm.DefaultQuantum

const (
	// maxStack leaves half of the guest's 1 MiB stack to native frames and to
	// the handling of the overflow.
	maxStack = StackSize
	// headroom is free heap in the image, so that most calls need not grow the
	// memory; a VM that grew cannot be reset.
	headroom = 2 << 20
	// gcThreshold spares small calls a collection of the prelude's objects.
	gcThreshold = 8 << 20
)

// ErrClosed says that the engine was closed.
var ErrClosed = wasmvm.ErrPoolClosed

// An Engine makes VMs.
type Engine struct {
	opts  Options
	code  *wasmvm.Code
	state wasmvm.State
	img   *memimage.Image
	boot  bootState
	pool  *wasmvm.Pool[*VM]
}

// Stats counts what an Engine did. Sizes are in bytes.
type Stats struct {
	wasmvm.PoolStats
	ImageBytes, Hot  uint64
	StoredImageBytes uint64
}

// bootState is what a VM needs beside the image.
type bootState struct {
	entries  []uint32 // boxed functions of the prelude
	scratch  uint32   // guest buffer for results by reference
	random   uint32   // address of the context's random state
	undefPtr uint32
}

// New compiles, boots and takes the image.
func New(ctx context.Context, o Options) (*Engine, error) {
	if o.Quantum == 0 {
		o.Quantum = DefaultQuantum
	}
	if o.Idle == 0 {
		o.Idle = 2 * runtime.GOMAXPROCS(0)
	}
	e := &Engine{opts: o}
	e.pool = wasmvm.NewPool(wasmvm.PoolOptions[*VM]{
		Make: e.newVM, Reset: (*VM).reset, Close: (*VM).close,
		Prepare: func(vm *VM) error { return vm.mem.Prepare() }, Cool: (*VM).cool, Trim: (*VM).trim,
		Idle: o.Idle, TrimAfter: o.IdleFor,
	})
	if err := e.start(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Compile puts the compiled code into o.CacheDir, so that an Engine in a
// process without the right to write there finds it.
func Compile(ctx context.Context, o Options) error {
	e := &Engine{opts: o}
	_, err := e.compile(ctx)
	return errors.Join(err, e.code.Close())
}

func (e *Engine) start(ctx context.Context) error {
	data, err := e.compile(ctx)
	if err != nil {
		return err
	}
	if err := e.takeImage(ctx, data); err != nil {
		return err
	}
	if err := e.warmUp(ctx); err != nil {
		return err
	}
	return e.pool.Fill(ctx)
}

// compile compiles the module without its data, which it gives: an instance over
// the image writes nothing.
func (e *Engine) compile(ctx context.Context) (data []byte, err error) {
	code, data, err := wasmvm.SplitData(e.opts.Wasm)
	if err != nil {
		return nil, fmt.Errorf("quickjs: %w", err)
	}
	code, info, err := wasmbin.Rewrite(code, wasmvm.Rewriting(!e.opts.Unmetered, exports[:]...))
	if err != nil {
		return nil, fmt.Errorf("quickjs: rewrite: %w", err)
	}
	if err := wasmvm.Resettable(info); err != nil {
		return nil, fmt.Errorf("quickjs: %w", err)
	}
	e.state = wasmvm.NewState(info, !e.opts.Unmetered)
	var cache wazero.CompilationCache
	if e.opts.CacheDir != "" {
		if cache, err = wazero.NewCompilationCacheWithDir(e.opts.CacheDir); err != nil {
			return nil, fmt.Errorf("quickjs: compilation cache: %w", err)
		}
	}
	if e.code, err = wasmvm.Compile(ctx, code, cache, hostModules); err != nil {
		return nil, fmt.Errorf("quickjs: %w", err)
	}
	return data, nil
}

// Get gives a clean VM: a kept one or a new one. The caller must Put it back.
func (e *Engine) Get(ctx context.Context) (*VM, error) { return e.pool.Get(ctx) }

// Put takes a VM back. It is reset if that makes it provably as new, else it
// is closed and another one is made, in the background.
func (e *Engine) Put(vm *VM) { e.pool.Put(vm) }

// New makes a VM that was never used, where Get may give one that was reset.
func (e *Engine) New(ctx context.Context) (*VM, error) { return e.pool.New(ctx) }

// Discard closes a VM instead of resetting it.
func (e *Engine) Discard(vm *VM) { e.pool.Discard(vm) }

// Stats tells what the engine holds.
func (e *Engine) Stats() Stats {
	s := Stats{PoolStats: e.pool.Stats()}
	if e.img != nil {
		s.ImageBytes, s.StoredImageBytes, s.Hot = e.img.Size(), e.img.Stored(), e.img.Hot()
	}
	return s
}

// Close ends the engine. VMs that are still out must not be used any more.
func (e *Engine) Close() error {
	e.pool.Close()
	err := e.code.Close()
	e.code = nil
	if e.img != nil {
		err = errors.Join(err, e.img.Close())
		e.img = nil
	}
	return err
}
