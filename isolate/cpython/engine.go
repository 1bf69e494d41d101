package cpython

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"time"

	"github.com/tetratelabs/wazero"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasmvm"
)

// Options of an Engine.
type Options struct {
	// Snapshot is the booted interpreter. It stays the caller's, and is not
	// needed any more once there is an Engine.
	Snapshot *Snapshot
	// Cache, if not nil, has the compiled code or gets it. The Engine takes it
	// over.
	Cache wazero.CompilationCache
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
}

// DefaultQuantum is 60 to 200 µs of work.
const DefaultQuantum = wasmvm.DefaultQuantum

// ErrClosed says that the engine was closed.
var ErrClosed = wasmvm.ErrPoolClosed

// An Engine makes VMs.
type Engine struct {
	opts  Options
	code  *wasmvm.Code
	img   *memimage.Image
	state State
	pool  *wasmvm.Pool[*VM]
	// functions is how many the module has; only Boot knows it.
	functions int
}

// Stats counts what an Engine did. Sizes are in bytes.
type Stats struct {
	wasmvm.PoolStats
	ImageBytes, Hot  uint64
	StoredImageBytes uint64
}

// New compiles, maps the snapshot and warms up.
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

func (e *Engine) start(ctx context.Context) (err error) {
	s := e.opts.Snapshot
	e.state = s.State
	image, err := dup(s.Image)
	if err != nil {
		return err
	}
	e.img, err = memimage.Open(image)
	if err != nil {
		return err
	}
	module, err := io.ReadAll(io.NewSectionReader(s.Module, 0, math.MaxInt64))
	if err != nil {
		return fmt.Errorf("cpython: read the module: %w", err)
	}
	if e.code, err = wasmvm.Compile(ctx, module, e.opts.Cache, hostModules); err != nil {
		return fmt.Errorf("cpython: %w", err)
	}
	if err := e.warmUp(ctx); err != nil {
		return err
	}
	return e.pool.Fill(ctx)
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

// MinMemory is the least linear memory in bytes that a VM can be given.
func (e *Engine) MinMemory() uint64 { return e.img.Size() }

// Close ends the engine. VMs that are still out must not be used any more.
func (e *Engine) Close() error {
	if e.pool != nil {
		e.pool.Close()
	}
	err := e.code.Close()
	e.code = nil
	if e.img != nil {
		err = errors.Join(err, e.img.Close())
		e.img = nil
	}
	return err
}
