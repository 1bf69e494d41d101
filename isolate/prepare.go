package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A function's module is evaluated once, for no call: it gets no input, no
// environment and no bindings, so that nothing of a call can be in the pages
// that later ones begin with. What it does then must be the same in each call.
// Where it is not, or where it cannot be done for no call, the pages are not
// kept and each call evaluates the module itself, as a run does.

// Why a module is evaluated anew for each call.
const (
	whyClock    = "its top level reads the clock"
	whyRandom   = "its top level draws random numbers"
	whyPrints   = "its top level prints"
	whyCalls    = "its top level makes a host call"
	whyTimers   = "its top level starts a timer or sleeps"
	whyFiles    = "its top level uses files"
	whyJobs     = "its top level leaves promise jobs pending"
	whyRejects  = "its top level rejects a promise that nobody handles"
	whyHost     = "its top level asks the host for something that is another thing in each call"
	whyLanguage = "functions in this language are begun anew for each call"
)

// whyLarge is for what takes more pages than are kept.
var whyLarge = fmt.Sprintf("its module takes more than %d MiB", maxDelta>>20)

// A preparing run evaluates a module.
type preparing struct {
	// why is the first thing that would not be the same in each call.
	why string
	// ready: the module is evaluated, and has what can be called.
	ready bool
	// idle: it has not begun, or it has failed; what is asked for then is the
	// prelude's own business.
	idle   bool
	failed bool
	// seed is what Math.random began with.
	seed uint64
	// state is what is known in the end; nothing if the module failed.
	state keptState
}

// note keeps the first reason.
func (p *preparing) note(why string) {
	if p != nil && p.why == "" && !p.idle {
		p.why = why
	}
}

// refuse is why a module is not evaluated further for no call; nil in a call.
func (p *preparing) refuse(why string) error {
	if p == nil || p.idle {
		return nil
	}
	p.note(why)
	return &impure{p.why}
}

// settle notes the end of an evaluation that ended with err.
func (p *preparing) settle(err error) {
	var stopped *impure
	if errors.As(err, &stopped) {
		p.state = keptState{reason: stopped.why}
	}
}

// An impure module cannot be evaluated for no call.
type impure struct{ why string }

func (e *impure) Error() string { return "isolate: " + e.why }

// noHost answers a module that is evaluated for no call. Nothing gets as far.
type noHost struct{}

func (noHost) Call(context.Context, Call) (json.RawMessage, error) { return nil, errors.ErrUnsupported }
func (noHost) Event(Event)                                         {}

// forNoCall is a job without what belongs to its call.
func (j *jobMessage) forNoCall() *jobMessage {
	req := *j.Request
	req.Input, req.Env, req.Bindings, req.Seed, req.Clock = nil, nil, nil, nil, nil
	return &jobMessage{Request: &req, Units: j.Units, Spent: j.Spent}
}

// prepared is the result of a Request that is to prepare.
func prepared(s keptState) *Result {
	r := &Result{Status: StatusOK, Phase: PhaseFinished, Value: json.RawMessage("null"), Prepared: &Prepared{Reason: s.reason}}
	if s.snapshot != nil {
		r.Prepared.Snapshot, r.Prepared.Bytes = true, int64(s.snapshot.Bytes())
	}
	return r
}

// A functionEngine runs functions in VMs of type V.
type functionEngine[V any] struct {
	get func(context.Context) (V, error)
	put func(V)
	// prepare evaluates the module of a job in a clean VM. It gives what is
	// known then, or the result of a call that ends with it.
	prepare func(ctx context.Context, vm V, job *jobMessage) (keptState, *Result)
	// call calls the function in a VM that was prepared, or in a clean one from
	// a snapshot; run evaluates the module and calls it, in a clean VM.
	call func(ctx context.Context, vm V, job *jobMessage, host Host, from snapshot) *Result
	run  func(ctx context.Context, vm V, job *jobMessage, host Host) *Result
}

// runFunction is runOn for a job whose function is kept.
func runFunction[V any](ctx context.Context, e *engines, eng functionEngine[V], job *jobMessage, host Host, finish func(*Result, error)) {
	state := e.kept.look(job.kept)
	known := state.snapshot != nil || state.reason != ""
	if job.Request.Prepare && known {
		finish(prepared(state), nil)
		return
	}
	vm, err := eng.get(ctx)
	if err != nil {
		finish(nil, err)
		return
	}
	anew := job.Anew && !job.Request.Prepare
	if !known && !anew {
		var res *Result
		began := time.Now()
		state, res = eng.prepare(ctx, vm, job)
		job.Spent += time.Since(began)
		if known = state.snapshot != nil || state.reason != ""; known {
			e.kept.settle(job.kept, state)
			res = prepared(state)
		}
		if job.Request.Prepare || !known {
			finish(res, nil)
			eng.put(vm)
			return
		}
		if state.snapshot != nil {
			finish(eng.call(ctx, vm, job, host, nil), nil)
			eng.put(vm)
			return
		}
		// The one that has begun to evaluate cannot be used for the call.
		eng.put(vm)
		if vm, err = eng.get(ctx); err != nil {
			finish(nil, err)
			return
		}
	}
	if state.snapshot != nil && !anew {
		finish(eng.call(ctx, vm, job, host, state.snapshot), nil)
	} else {
		finish(eng.run(ctx, vm, job, host), nil)
	}
	eng.put(vm)
}

// hold finds the function of a job among those that are kept, or has it sent.
func (e *engines) hold(ctx context.Context, job *jobMessage, send func(context.Context) (*functionCode, error)) error {
	k := e.kept.get(job.Function)
	if k == nil {
		code, err := send(ctx)
		if err != nil {
			return err
		}
		k = e.kept.put(job.Function, code)
	}
	req := job.Request
	req.Language, req.Main, req.Modules = k.code.Language, k.code.Main, k.code.Modules
	job.Units, job.kept = k.code.Units, k
	return nil
}
