package isolate

import (
	"fmt"
	"time"
)

// compileReason is why a worker ends that does not come to an end of compiling.
const compileReason = "the compilation of a module took too long"

// watchCompile kills the worker when a compilation has taken too much processor
// time: on a busy machine an honest one takes long by the clock.
func (r *remote) watchCompile() {
	t := time.NewTicker(memoryCheck)
	defer t.Stop()
	began, err := processorTime(r.w.cmd.Process.Pid)
	for {
		select {
		case <-r.w.dead:
			return
		case <-t.C:
		}
		used, uerr := processorTime(r.w.cmd.Process.Pid)
		r.mu.Lock()
		over := !r.loading || r.over
		late := !over && err == nil && uerr == nil && used-began > compileWasm
		r.overstayed = r.overstayed || late
		r.mu.Unlock()
		if late {
			r.w.fail(compileReason, nil)
		}
		if over || late {
			return
		}
	}
}

// takeLoaded begins the wall time of a run whose module had to be compiled.
func (r *remote) takeLoaded() error {
	if !r.loading {
		return fmt.Errorf("%w: nothing was compiled", errFrame)
	}
	spent := r.spent
	r.loading, r.started = false, time.Now().Add(-spent)
	r.endLocked(r.req.Limits.Wall+overstay-spent, wallReason)
	r.loaded()
	return nil
}

// compileFailed is the result of a run whose module ended its compiler.
func (r *remote) compileFailed(late bool) *Result {
	res := r.killed(limitError("compile", r.wall().Round(time.Millisecond), compileWasm))
	res.Phase = PhaseNotStarted
	res.Error.Message = fmt.Sprintf("the module took too long to compile: more than %v of processor time", compileWasm)
	if !late {
		res.Error.Message = fmt.Sprintf("the module took too much memory to compile: more than %d bytes", workerMemory)
		res.Error.Used, res.Error.Allowed = "", text(workerMemory)
	}
	res.Error.Hint = "some function in it is too large or too deeply nested"
	return res
}
