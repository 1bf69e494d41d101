package isolate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/tetratelabs/wazero"

	"sandboxd/isolate/cpython"
	"sandboxd/isolate/guests"
	"sandboxd/isolate/quickjs"
)

const (
	// pythonGuest is the interpreter's name in the manifest.
	pythonGuest    = "python"
	languagePython = "python"
)

// engines are the interpreters of one process.
type engines struct {
	js *quickjs.Engine // nil where there is none
	// modules are nil where no tenant's own module may run.
	modules *modules
	// kept are the functions that were run here.
	kept  keptFunctions
	quiet quiet

	mu     sync.Mutex
	python *cpython.Engine
	// boot makes python with its first run, where that was not there from the
	// start.
	boot func(ctx context.Context) (*cpython.Engine, error)
}

func (e *engines) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept.close()
	var err error
	if e.js != nil {
		err = e.js.Close()
	}
	if e.python != nil {
		err = errors.Join(err, e.python.Close())
	}
	return err
}

func (e *engines) forPython(ctx context.Context) (_ *cpython.Engine, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.python == nil {
		if e.boot == nil {
			return nil, errors.New("isolate: there is no Python")
		}
		e.python, err = e.boot(ctx)
	}
	return e.python, err
}

// runPython is runOn for Python.
func (e *engines) runPython(ctx context.Context, job *jobMessage, host Host, finish func(*Result, error)) {
	python, err := e.forPython(ctx)
	if err != nil {
		finish(nil, err)
		return
	}
	vm, err := python.Get(ctx)
	if err != nil {
		finish(nil, err)
		return
	}
	finish(executePython(ctx, vm, job, host), nil)
	// Who waits for the result is to go on before the VM is made clean, which
	// takes as long as a small run.
	runtime.Gosched()
	python.Put(vm)
}

// runKept is runOn for a function.
func (e *engines) runKept(ctx context.Context, job *jobMessage, host Host, finish func(*Result, error)) {
	switch job.Request.Language {
	case languagePython:
		python, err := e.forPython(ctx)
		if err != nil {
			finish(nil, err)
			return
		}
		runFunction(ctx, e, pythonFunctions(python), job, host, finish)
	case "js", "ts":
		runFunction(ctx, e, e.jsFunctions(), job, host, finish)
	default: // is run as any other code
		job.kept = nil
		runOn(ctx, e, job, host, finish)
	}
}

// bootOptions are those of every snapshot. cacheDir has it and the compiled code;
// it may be empty: nothing is kept then.
func bootOptions(guestDir, cacheDir string) (o cpython.BootOptions, err error) {
	o = cpython.BootOptions{Dir: cacheDir, MaxMemory: MaxMemory}
	if o.Wasm, err = guests.Load(guestDir, pythonGuest); err != nil {
		return o, err
	}
	o.Cache, err = codeCache(cacheDir)
	return o, err
}

// bootPython makes a snapshot, or takes the one that is kept.
func bootPython(ctx context.Context, guestDir, cacheDir string) (*cpython.Snapshot, error) {
	o, err := bootOptions(guestDir, cacheDir)
	if err != nil {
		return nil, err
	}
	return cpython.Boot(ctx, o)
}

// newPython makes an engine of a snapshot.
func newPython(ctx context.Context, s *cpython.Snapshot, cacheDir string) (*cpython.Engine, error) {
	o, err := pythonOptions(s, cacheDir)
	if err != nil {
		return nil, err
	}
	return cpython.New(ctx, o)
}

func pythonOptions(s *cpython.Snapshot, cacheDir string) (cpython.Options, error) {
	cache, err := codeCache(cacheDir)
	return cpython.Options{
		Snapshot: s, Cache: cache, MaxMemory: MaxMemory,
		Warm: []func(context.Context, *cpython.VM) error{warmPython(pythonWarm), warmPython(pythonPlain)},
	}, err
}

func codeCache(dir string) (wazero.CompilationCache, error) {
	if dir == "" {
		return wazero.NewCompilationCache(), nil
	}
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, fmt.Errorf("isolate: compilation cache: %w", err)
	}
	return cache, nil
}

// loadPython is loadEngine for Python.
func loadPython(ctx context.Context, guestDir, cacheDir string) (*cpython.Engine, error) {
	s, err := bootPython(ctx, guestDir, cacheDir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return newPython(ctx, s, cacheDir)
}
