package isolate

import (
	"context"
	"errors"

	"sandboxd/isolate/quickjs"
)

// pureOps are the operations whose answer is the same in each call.
var pureOps = map[int64]bool{opFail: true, opDecode: true, opEncode: true, opReady: true,
	opURL: true, opSetURL: true, opEncoding: true, opDigest: true, opHMAC: true, opIncomplete: true}

// impureOps says what else a module asks for.
var impureOps = map[int64]string{opLog: whyPrints, opCall: whyCalls, opTimer: whyTimers, opClearTimer: whyTimers, opRandom: whyRandom}

// allow tells whether a module that is evaluated for no call may ask for op.
func (p *preparing) allow(op int64) error {
	if p == nil || pureOps[op] {
		return nil
	}
	if why := impureOps[op]; why != "" {
		return p.refuse(why)
	}
	return p.refuse(whyHost)
}

// functions is how JavaScript functions are run.
func (e *engines) jsFunctions() functionEngine[*quickjs.VM] {
	return functionEngine[*quickjs.VM]{
		get: e.js.Get, put: e.js.Put, prepare: prepareJS, run: execute,
		call: func(ctx context.Context, vm *quickjs.VM, job *jobMessage, host Host, from snapshot) *Result {
			return executeBy(ctx, vm, job, host, func(r *run) error {
				if from != nil {
					if err := vm.Load(from.(*quickjs.Evaluated), uint64(job.Request.Limits.Memory)); err != nil {
						return err
					}
				}
				return r.callKept()
			})
		},
	}
}

// prepareJS evaluates a function's module in a clean VM.
func prepareJS(ctx context.Context, vm *quickjs.VM, job *jobMessage) (keptState, *Result) {
	p := &preparing{}
	res := executeBy(ctx, vm, job.forNoCall(), noHost{}, func(r *run) error {
		r.prep = p
		err := r.evaluate()
		p.settle(err)
		return err
	})
	return p.state, res
}

// evaluate is main without the call.
func (r *run) evaluate() error {
	promise, err := r.evalMain()
	if err != nil {
		return err
	}
	granted := 0.0
	if r.req.Fetch {
		granted = 1
	}
	flag, err := r.vm.Number(granted)
	if err != nil {
		return err
	}
	if err := r.enter(entryPrepare, promise, flag); err != nil {
		return err
	}
	if err := r.loop(); err != nil || r.outcome != nil {
		return err
	}
	return r.keepModule()
}

// ready is when the module was evaluated; text says what it lacks.
func (r *run) ready(text string) {
	switch {
	case r.prep == nil || r.outcome != nil:
	case text != "":
		r.outcome = &outcome{err: r.code.errorOf(text, KindThrown)}
	default:
		r.prep.ready = true
	}
}

// keepModule takes the pages, if they serve every call.
func (r *run) keepModule() error {
	seed, err := r.vm.Seed()
	if err != nil {
		return err
	}
	pending, err := r.vm.JobPending()
	if err != nil {
		return err
	}
	p := r.prep
	switch {
	case seed != p.seed:
		p.note(whyRandom)
	case pending:
		p.note(whyJobs)
	case len(r.rejected) > 0:
		p.note(whyRejects)
	}
	if p.why != "" {
		return &impure{p.why}
	}
	m, err := r.vm.Save(maxDelta)
	switch {
	case errors.Is(err, quickjs.ErrLarge):
		return &impure{whyLarge}
	case err != nil:
		return err
	}
	p.state = keptState{snapshot: m}
	return nil
}

// callKept calls the function of a module that is evaluated already.
func (r *run) callKept() error {
	if err := r.vm.Begin(r, uint64(r.req.Limits.Memory), r.random.Uint64()); err != nil {
		return err
	}
	r.code.evaluated, r.phase = true, PhaseStarted
	job, err := r.job()
	if err != nil {
		return err
	}
	if err := r.enter(entryResume, job); err != nil {
		return err
	}
	return r.loop()
}
