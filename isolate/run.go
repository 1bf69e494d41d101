package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"sandboxd/isolate/quickjs"
)

// Entry points of the prelude, in the order of its result.
const (
	entryStart = iota
	entrySettle
	entryFire
	entryDescribe
	entryPrepare
	entryResume
)

// A run is one Request in one VM. All of it happens on one goroutine, except
// the host calls, which answer over a channel.
type run struct {
	req  *Request
	host Host
	code *code
	vm   *quickjs.VM

	ctx     context.Context // ends with the wall limit or the caller
	started time.Time
	usage   Usage
	time    cpuTime
	lines   int
	phase   string
	random  randomness
	clock   clock

	calls    calls
	timers   timers
	rejected []rejection
	outcome  *outcome
	prep     *preparing // nil in a call
}

// An outcome is what the code gave as its last word.
type outcome struct {
	value json.RawMessage
	err   *Error
}

// execute runs a job in a clean VM. It always returns a Result.
func execute(ctx context.Context, vm *quickjs.VM, job *jobMessage, host Host) *Result {
	return executeBy(ctx, vm, job, host, (*run).main)
}

func executeBy(ctx context.Context, vm *quickjs.VM, job *jobMessage, host Host, main func(*run) error) *Result {
	req := job.Request
	r := &run{req: req, host: host, code: newCode(req, job.Units), vm: vm, started: time.Now().Add(-job.Spent), phase: PhaseNotStarted}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithDeadlineCause(ctx, r.started.Add(req.Limits.Wall), errWall)
	defer cancel()
	r.random, r.clock = newRandomness(req.Seed), newClock(req.Clock, r.started)
	r.calls.init(r)
	r.time = cpuTime{ctx: r.ctx, tenant: req.Tenant}
	r.time.start()
	err := main(r)
	r.time.end()
	cancel()
	if len(r.calls.running) > 0 {
		r.calls.host.end()
	}
	return r.result(err)
}

var errWall = errors.New("wall time is over")

// main goes from the source to an outcome. The error is an *Error or what the
// VM died of.
func (r *run) main() error {
	promise, err := r.evalMain()
	if err != nil {
		return err
	}
	job, err := r.job()
	if err != nil {
		return err
	}
	if err := r.enter(entryStart, promise, job); err != nil {
		return err
	}
	return r.loop()
}

// evalMain begins the evaluation of the main module and gives its promise.
func (r *run) evalMain() (quickjs.Value, error) {
	u, rejected := r.code.load(r.req.Main)
	if rejected != nil {
		return 0, rejected
	}
	if err := r.vm.Begin(r, uint64(r.req.Limits.Memory), r.random.Uint64()); err != nil {
		return 0, err
	}
	if r.prep != nil {
		var err error
		if r.prep.seed, err = r.vm.Seed(); err != nil {
			return 0, err
		}
	}
	r.phase = PhaseStarted
	promise, threw, err := r.vm.EvalModule(r.req.Main, u.text)
	if err == nil && threw {
		// Nothing has run yet: a module could not be read, found or linked.
		r.phase = PhaseNotStarted
		err = r.rejection(promise)
	}
	return promise, err
}

// job is what the prelude needs to know of the request.
func (r *run) job() (quickjs.Value, error) {
	type binding struct {
		Name    string   `json:"name"`
		Methods []string `json:"methods"`
	}
	j := struct {
		Input    string            `json:"input"`
		Env      map[string]string `json:"env"`
		Bindings []binding         `json:"bindings"`
		Fetch    bool              `json:"fetch"`
	}{Input: string(r.req.Input), Env: r.req.Env, Bindings: []binding{}, Fetch: r.req.Fetch}
	if len(r.req.Input) == 0 {
		j.Input = "null"
	}
	if j.Env == nil {
		j.Env = map[string]string{}
	}
	for _, b := range r.req.Bindings {
		j.Bindings = append(j.Bindings, binding{b.Name, append([]string{}, b.Methods...)})
	}
	b, err := json.Marshal(j)
	if err != nil {
		return 0, err
	}
	return r.vm.String(string(b))
}

// rejection explains why a module could not be evaluated.
func (r *run) rejection(exception quickjs.Value) error {
	if r.code.rejected != nil {
		return r.code.rejected
	}
	text, err := r.describe(exception)
	if err != nil {
		return err
	}
	return r.code.errorOf(text, KindRejected)
}

func (r *run) describe(v quickjs.Value) (string, error) {
	d, threw, err := r.vm.CallEntry(entryDescribe, v)
	if err != nil {
		return "", err
	}
	if threw {
		return "", r.vm.Free(d)
	}
	text, err := r.vm.Text(d)
	return text, errors.Join(err, r.vm.Free(d))
}

// enter calls a function of the prelude whose result is of no interest. If it
// throws, the code has brought it to that.
func (r *run) enter(entry int, args ...quickjs.Value) error {
	v, threw, err := r.vm.CallEntry(entry, args...)
	if err != nil {
		return err
	}
	if threw {
		return r.thrown(v)
	}
	return r.vm.Free(v)
}

// loop runs jobs, due timers and answers until there is an outcome.
func (r *run) loop() error {
	for {
		if err := r.runJobs(); err != nil || r.over() {
			return err
		}
		// One timer or answer at a time, so that the jobs that it makes come
		// before the next one.
		if id, ok := r.timers.due(r.clock.elapsed()); ok {
			if err := r.fire(id); err != nil {
				return err
			}
			continue
		}
		if len(r.calls.refused) > 0 {
			a := r.calls.refused[0]
			r.calls.refused = r.calls.refused[1:]
			if err := r.settle(a); err != nil {
				return err
			}
			continue
		}
		if err := r.wait(); err != nil {
			return err
		}
	}
}

// over tells whether there is nothing more to be run.
func (r *run) over() bool { return r.outcome != nil || r.prep != nil && r.prep.ready }

func (r *run) runJobs() error {
	for !r.over() {
		ran, exception, err := r.vm.RunJob()
		if err != nil {
			return err
		}
		if !ran {
			return nil
		}
		if exception != 0 {
			if err := r.thrown(exception); err != nil {
				return err
			}
		}
	}
	return nil
}

// thrown ends the run with an exception that nobody caught.
func (r *run) thrown(exception quickjs.Value) error {
	text, err := r.describe(exception)
	if err != nil {
		return err
	}
	r.outcome = &outcome{err: r.overflow(r.code.errorOf(text, KindThrown))}
	return nil
}

func (r *run) fire(id int64) error {
	arg, err := r.vm.Number(float64(id))
	if err != nil {
		return err
	}
	return r.enter(entryFire, arg)
}

// wait waits for an answer or a timer.
func (r *run) wait() error {
	next, timed := r.timers.next()
	if r.calls.open == 0 && !timed {
		return &Error{
			Kind:    KindThrown,
			Message: "the code waits for a promise that nothing will settle",
			Hint:    "no host call and no timer is under way; is a resolve() missing?",
		}
	}
	var due <-chan time.Time
	if timed && r.clock.virtual() {
		// Its time passes when there is nothing else to wait for.
		if r.calls.open == 0 {
			r.clock.advance(next)
			return nil
		}
		timed = false
	}
	if timed {
		t := time.NewTimer(next - r.clock.elapsed())
		defer t.Stop()
		due = t.C
	}
	r.time.pause()
	if r.req.Paced && len(r.calls.running) > 0 && len(r.calls.answers) == 0 {
		r.calls.host.waiting(r.calls.settled)
	}
	var a answer
	answered := false
	select {
	case a = <-r.calls.answers:
		answered = true
	case <-due:
	case <-r.ctx.Done():
	}
	r.time.start()
	switch {
	case r.ctx.Err() != nil:
		// First, because a host call that ends with the run answers as well.
		return r.ended()
	case answered:
		return r.settle(a)
	}
	return nil
}

// ended says why ctx is done.
func (r *run) ended() error {
	var e *Error
	if errors.As(context.Cause(r.ctx), &e) {
		return e
	}
	if errors.Is(context.Cause(r.ctx), errWall) {
		return limitError("wall", time.Since(r.started).Round(time.Millisecond), r.req.Limits.Wall)
	}
	return &Error{Kind: KindCanceled, Message: "the caller has ended the run"}
}

// Tick implements quickjs.Hooks.
func (r *run) Tick() error {
	if cpu := r.cpu(); cpu >= r.req.Limits.CPU {
		return limitError("cpu", cpu.Round(time.Millisecond), r.req.Limits.CPU)
	}
	if r.ctx.Err() != nil {
		return r.ended()
	}
	if time.Since(r.started) >= r.req.Limits.Wall {
		return limitError("wall", time.Since(r.started).Round(time.Millisecond), r.req.Limits.Wall)
	}
	r.time.yield()
	return nil
}

// fuelPerMicrosecond is what QuickJS was seen to use: 5000 in a tight loop, 16000
// in a regular expression. It turns fuel to time where a run must end at the
// same instruction each time.
const fuelPerMicrosecond = 10_000

// cpu is the time that the code has worked: measured, or counted in fuel if the
// run is deterministic.
func (r *run) cpu() time.Duration {
	if r.req.deterministic() {
		return time.Duration(r.vm.Fuel()) * time.Microsecond / fuelPerMicrosecond
	}
	return r.time.now()
}

// Normalize implements quickjs.Hooks.
func (r *run) Normalize(base, specifier string) (string, error) {
	return r.code.resolve(base, specifier)
}

// Load implements quickjs.Hooks.
func (r *run) Load(name string) (string, error) {
	u, err := r.code.load(name)
	if err != nil {
		r.code.rejected = err
		return "", err
	}
	return u.text, nil
}

const maxRejections = 8

// A rejection is a rejected promise that nobody has handled yet.
type rejection struct {
	promise quickjs.Value
	text    string // of the reason
}

// Rejected implements quickjs.Hooks.
func (r *run) Rejected(promise, reason quickjs.Value, handled bool) {
	at := slices.IndexFunc(r.rejected, func(x rejection) bool { return x.promise == promise })
	if handled {
		if at >= 0 {
			r.rejected = slices.Delete(r.rejected, at, at+1)
		}
		return
	}
	if at >= 0 || len(r.rejected) >= maxRejections {
		return
	}
	x := rejection{promise: promise}
	if dup, err := r.vm.Dup(reason); err == nil {
		if text, err := r.describe(dup); err == nil {
			x.text = text
		}
	}
	r.rejected = append(r.rejected, x)
}

// Now implements quickjs.Hooks.
func (r *run) Now() (realtime, monotonic int64) {
	r.prep.note(whyClock)
	return r.clock.now()
}

// Random implements quickjs.Hooks.
func (r *run) Random(b []byte) {
	r.prep.note(whyRandom)
	r.random.Read(b)
}

// Large implements quickjs.Hooks.
func (r *run) Large() { r.time.large() }
