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

// canceledReason is why a worker ends in which the only run is ended before its
// module is compiled: a compiler heeds nothing.
const canceledReason = "its run was ended while its module was being compiled"

// cancelCompile ends the worker if it compiles the run's module.
func (r *remote) cancelCompile() bool {
	r.mu.Lock()
	loading := r.loading && !r.over
	r.overstayed = r.overstayed || loading
	r.mu.Unlock()
	if loading {
		r.w.kill(canceledReason, nil)
	}
	return loading
}

// takeLoaded says that the module of the run is compiled.
func (r *remote) takeLoaded() error {
	if !r.loading {
		return fmt.Errorf("%w: nothing was compiled", errFrame)
	}
	r.loading = false
	if r.req.Prepare {
		r.started = time.Now()
	}
	r.endLocked(time.Until(r.started.Add(r.req.Limits.Wall+overstay)), wallReason)
	r.loaded()
	return nil
}

// compileFailed is the result of a run whose module ended its compiler: late by
// what compiling may take, or by the run's wall time.
func (r *remote) compileFailed(late, wall bool) *Result {
	res := r.killed(limitError("compile", r.wall().Round(time.Millisecond), compileWasm))
	res.Phase = PhaseNotStarted
	switch {
	case wall:
		res.Error = limitError("wall", r.wall().Round(time.Millisecond), r.req.Limits.Wall)
		res.Error.Message += ", and the module was still being compiled"
		res.Error.Hint = "the first run of a module compiles it: let it have more wall time, or make the module smaller"
		return res
	case late:
		res.Error.Message = fmt.Sprintf("the module took too long to compile: more than %v of processor time", compileWasm)
	default:
		res.Error.Message = fmt.Sprintf("the module took too much memory to compile: more than %d bytes", workerMemory)
		res.Error.Used, res.Error.Allowed = "", text(workerMemory)
	}
	res.Error.Hint = "some function in it is too large or too deeply nested"
	return res
}
