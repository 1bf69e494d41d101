package isolate

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"sandboxd/isolate/wasm"
)

// modules are the tenant's own modules that a worker has compiled.
type modules struct {
	mu    sync.Mutex
	byKey map[moduleKey]*wasm.Module
}

func newModules() *modules { return &modules{byKey: map[moduleKey]*wasm.Module{}} }

// A loader is a Host that wants to know when a run's module is compiled.
type loader interface{ compiled() }

// errNoModule says that the pool thinks that a worker has a module that it has
// not.
var errNoModule = errors.New("isolate: the module is not here")

// load gives the module of a job. The pool sees to it that a worker which
// compiles does nothing else, and that what is dropped is not in use.
func (m *modules) load(ctx context.Context, job *wasmJob) (*wasm.Module, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range job.Drop {
		if old := m.byKey[key]; old != nil {
			delete(m.byKey, key)
			if err := old.Close(); err != nil {
				return nil, err
			}
		}
	}
	if job.Module == nil {
		if have := m.byKey[job.Key]; have != nil {
			return have, nil
		}
		return nil, errNoModule
	}
	module, err := wasm.Compile(ctx, job.Module)
	if err == nil {
		m.byKey[job.Key] = module
	}
	return module, err
}

// runWasm is runOn for a tenant's own module.
func (e *engines) runWasm(ctx context.Context, job *jobMessage, host Host, finish func(*Result, error)) {
	if e.modules == nil || job.Wasm == nil {
		finish(nil, errNoModule)
		return
	}
	fresh, began := job.Wasm.Module != nil, time.Now()
	module, err := e.modules.load(ctx, job.Wasm)
	job.Spent += time.Since(began)
	job.Wasm.Module = nil // it is compiled, and need not be held
	var no *wasm.RejectedError
	switch {
	case errors.As(err, &no):
		finish(&Result{Status: StatusError, Phase: PhaseNotStarted, Error: rejected(no)}, nil)
		return
	case err != nil:
		finish(nil, err)
		return
	}
	if l, ok := host.(loader); ok && fresh {
		l.compiled()
	}
	if job.Request.Prepare {
		finish(prepared(keptState{reason: whyLanguage}), nil)
		return
	}
	finish(executeWasm(ctx, module, job, host), nil)
	if fresh {
		// What the compiler held is of no use until the next module comes.
		debug.FreeOSMemory()
	}
}
