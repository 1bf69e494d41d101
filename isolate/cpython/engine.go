package cpython

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"sandboxd/isolate/memimage"
)

// Options of an Engine.
type Options struct {
	// Snapshot is the booted interpreter. It stays the caller's, and is not
	// needed any more once there is an Engine.
	Snapshot *Snapshot
	// Cache, if not nil, has the compiled code or gets it. The Engine takes it
	// over.
	Cache wazero.CompilationCache
	// Warm, if not nil, is run on VMs before the first Get, so that what a call
	// always writes is known. It is given clean VMs.
	Warm func(ctx context.Context, vm *VM) error
	// MaxMemory is the largest linear memory that any VM may have.
	MaxMemory uint64
	// Quantum is the fuel between two calls of Hooks.Tick; 0 means
	// DefaultQuantum.
	Quantum int64
	// Idle is how many clean VMs are kept; 0 means two per core.
	Idle int
}

// DefaultQuantum is 60 to 200 µs of work.
const DefaultQuantum = 1_000_000

const (
	fuelExport   = "isolate_fuel"
	fuelModule   = "isolate_fuel"
	fuelName     = "empty"
	globalPrefix = "isolate_global_"
)

// ErrClosed says that the engine was closed.
var ErrClosed = errors.New("cpython: engine is closed")

// An Engine makes VMs.
type Engine struct {
	opts     Options
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	img      *memimage.Image
	state    State

	mu      sync.Mutex
	idle    []*VM
	trimmer *time.Timer // runs while there are idle VMs to trim
	closed  bool
	filling bool
	group   sync.WaitGroup
	stats   Stats
}

// Stats counts what an Engine did.
type Stats struct {
	Idle, Live       int
	Created, Resets  uint64
	Trims            uint64
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
	if err := e.start(ctx); err != nil {
		e.Close()
		return nil, err
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
	if err := e.compile(ctx, module); err != nil {
		return err
	}
	if err := e.warmUp(ctx); err != nil {
		return err
	}
	return e.fill(ctx)
}

func (e *Engine) compile(ctx context.Context, module []byte) (err error) {
	config := wazero.NewRuntimeConfigCompiler()
	if e.opts.Cache != nil {
		config = config.WithCompilationCache(e.opts.Cache)
	}
	e.runtime = wazero.NewRuntimeWithConfig(ctx, config)
	if err := hostModules(ctx, e.runtime); err != nil {
		return fmt.Errorf("cpython: host functions: %w", err)
	}
	e.compiled, err = e.runtime.CompileModule(experimental.WithCompilationWorkers(ctx, runtime.GOMAXPROCS(0)), module)
	if err != nil {
		return fmt.Errorf("cpython: compile: %w", err)
	}
	return nil
}

// fill makes clean VMs until as many are kept as should be.
func (e *Engine) fill(ctx context.Context) error {
	for {
		e.mu.Lock()
		enough := e.closed || len(e.idle) >= e.opts.Idle
		e.mu.Unlock()
		if enough {
			return nil
		}
		vm, err := e.newVM(ctx)
		if err != nil {
			return err
		}
		// It is clean; this takes the page faults of a first call.
		if err := vm.reset(); err != nil {
			vm.close()
			return err
		}
		e.keep(vm)
	}
}

// refill is fill in the background, once at a time.
func (e *Engine) refill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.filling || len(e.idle) >= e.opts.Idle {
		return
	}
	e.filling = true
	e.group.Go(func() {
		// A failure shows when a call wants a VM.
		_ = e.fill(context.Background())
		e.mu.Lock()
		e.filling = false
		e.mu.Unlock()
	})
}

// keep puts a clean VM among the idle ones, or closes it if there are enough.
func (e *Engine) keep(vm *VM) {
	e.mu.Lock()
	if e.closed || len(e.idle) >= e.opts.Idle {
		e.mu.Unlock()
		vm.close()
		return
	}
	vm.idleSince = time.Now()
	e.idle = append(e.idle, vm)
	if e.trimmer == nil {
		e.trimmer = time.AfterFunc(trimAfter, e.trim)
	}
	e.mu.Unlock()
}

// trimAfter is how long a VM may be idle before its memory is given back.
const trimAfter = 10 * time.Second

// trim gives back what VMs hold that nobody has wanted for a while; the next
// call in one takes the page faults of a new one.
func (e *Engine) trim() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trimmer = nil
	if e.closed {
		return
	}
	next := time.Duration(0)
	for _, vm := range e.idle {
		if vm.idleSince.IsZero() {
			continue
		}
		if left := trimAfter - time.Since(vm.idleSince); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		if err := vm.mem.Drop(); err == nil {
			e.stats.Trims++
		}
		vm.idleSince = time.Time{} // an error would be the same again
	}
	if next > 0 {
		e.trimmer = time.AfterFunc(next, e.trim)
	}
}

// Get gives a clean VM: a kept one or a new one. The caller must Put it back.
func (e *Engine) Get(ctx context.Context) (*VM, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, ErrClosed
	}
	if n := len(e.idle); n > 0 {
		vm := e.idle[n-1]
		e.idle = e.idle[:n-1]
		e.mu.Unlock()
		return vm, nil
	}
	e.mu.Unlock()
	return e.newVM(ctx)
}

// Put takes a VM back. It is reset if that makes it provably as new, else it
// is closed and another one is made, in the background.
func (e *Engine) Put(vm *VM) {
	if err := vm.reset(); err != nil {
		vm.close()
		e.refill()
		return
	}
	e.mu.Lock()
	e.stats.Resets++
	e.mu.Unlock()
	e.keep(vm)
}

// Stats tells what the engine holds.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Idle = len(e.idle)
	if e.img != nil {
		s.ImageBytes, s.StoredImageBytes, s.Hot = e.img.Size(), e.img.Stored(), e.img.Hot()
	}
	return s
}

// MinMemory is the least linear memory that a VM can be given.
func (e *Engine) MinMemory() uint64 { return e.img.Size() }

// Close ends the engine. VMs that are still out must not be used any more.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	idle := e.idle
	e.idle = nil
	if e.trimmer != nil {
		e.trimmer.Stop()
	}
	e.mu.Unlock()
	e.group.Wait()
	for _, vm := range idle {
		vm.close()
	}
	ctx := context.Background()
	var errs []error
	if e.runtime != nil {
		errs = append(errs, e.runtime.Close(ctx))
	}
	if e.opts.Cache != nil {
		errs = append(errs, e.opts.Cache.Close(ctx))
	}
	if e.img != nil {
		errs = append(errs, e.img.Close())
	}
	return errors.Join(errs...)
}

func (e *Engine) count(created, live int) {
	e.mu.Lock()
	e.stats.Created += uint64(created)
	e.stats.Live += live
	e.mu.Unlock()
}

// instantiate makes an instance over mem. Nothing of it has run.
func (e *Engine) instantiate(ctx context.Context, mem *memimage.Memory) (api.Module, error) {
	ctx = experimental.WithMemoryAllocator(ctx, mem)
	mod, err := e.runtime.InstantiateModule(ctx, e.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err == nil {
		err = mem.Err()
	}
	if err != nil {
		if mod != nil {
			mod.Close(ctx)
		}
		mem.Free()
		return nil, fmt.Errorf("cpython: instantiate: %w", err)
	}
	return mod, nil
}

// New gives a clean VM that was made for the caller, who must Discard it. For
// measurements: Get is quicker.
func (e *Engine) New(ctx context.Context) (*VM, error) { return e.newVM(ctx) }

// Discard ends a VM.
func (e *Engine) Discard(vm *VM) { vm.close() }
