package isolate

import (
	"context"
	"errors"
	"runtime"

	"sandboxd/isolate/cpython"
)

// pythonFunctions is how Python functions are run.
func pythonFunctions(e *cpython.Engine) functionEngine[*cpython.VM] {
	return functionEngine[*cpython.VM]{
		get: e.Get, prepare: preparePython, run: executePython,
		put: func(vm *cpython.VM) {
			runtime.Gosched() // see runPython
			e.Put(vm)
		},
		call: func(ctx context.Context, vm *cpython.VM, job *jobMessage, host Host, from snapshot) *Result {
			return executePythonBy(ctx, vm, job, host, func(r *pythonRun) error {
				if from != nil {
					if err := vm.Load(from.(*cpython.Evaluated), uint64(job.Request.Limits.Memory)); err != nil {
						return err
					}
				}
				r.phase = PhaseStarted
				return r.do(opCallIt)
			})
		},
	}
}

// preparePython evaluates a function's module in a clean VM.
func preparePython(ctx context.Context, vm *cpython.VM, job *jobMessage) (keptState, *Result) {
	// A compiler that refuses the source looks for its file.
	p := &preparing{idle: true}
	res := executePythonBy(ctx, vm, job.forNoCall(), noHost{}, func(r *pythonRun) error {
		r.prep = p
		err := r.do(opPrepare)
		if err == nil && r.outcome != nil && r.outcome.err == nil {
			err = r.keepModule()
		}
		p.settle(err)
		return err
	})
	return p.state, res
}

// keepModule takes the pages, if they serve every call.
func (r *pythonRun) keepModule() error {
	switch {
	case r.prep.why != "":
		return &impure{r.prep.why}
	case r.prep.failed: // it has said so itself
		return &impure{whyHost}
	}
	m, err := r.vm.Save(maxDelta)
	switch {
	case errors.Is(err, cpython.ErrLarge):
		return &impure{whyLarge}
	case errors.Is(err, cpython.ErrFiles):
		return &impure{whyFiles}
	case err != nil:
		return err
	}
	r.prep.state = keptState{snapshot: m}
	return nil
}
