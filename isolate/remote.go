package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// A remote is a run in a worker, as the pool sees it. The worker keeps the
// limits; here they are kept again, because it may have been taken over.
type remote struct {
	w    *process
	id   uint64
	req  *Request
	host Host
	// start is host, if that has something to do first; begun is closed when it
	// has done it.
	start StartHost
	begun chan struct{}
	// order is host, if that wants to know the order of answers.
	order OrderHost
	ctx   context.Context
	// started is when the wall time began.
	started time.Time

	spent time.Duration // of it, before the worker got the run
	// loaded is called when the run's module is compiled.
	loaded func()

	mu         sync.Mutex
	loading    bool        // the module is being compiled
	starting   bool        // the host has not begun: nobody reads what the worker says
	late       *time.Timer // kills the worker if it keeps the run
	over       bool        // nothing may kill the worker for this run any more
	refused    bool        // by the host: it gets nothing of this run
	overstayed bool        // it is why the worker was killed
	inbox      []Event
	result     *Result
	notify     chan struct{} // one place: there is something for Run
	calls      map[uint64]context.CancelFunc
	last       uint64 // number of the latest call
	made       int
	requests   int
	output     int64
	events     int
	sent       bool // the code of its function
	group      sync.WaitGroup

	answering sync.Mutex // held while an ordered answer is sent
}

// run sends a job and waits for its end.
func (w *process) run(ctx context.Context, id uint64, job *jobMessage, host Host, loaded func()) (*Result, error) {
	req := job.Request
	b, err := (&frame{kind: frameRun, run: id}).encodeWith(job)
	if err != nil {
		return nil, err
	}
	r := &remote{w: w, id: id, req: req, host: host, notify: make(chan struct{}, 1), loaded: loaded}
	r.order, _ = host.(OrderHost)
	if r.start, _ = host.(StartHost); r.start != nil {
		r.begun, r.starting = make(chan struct{}), true
	}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(ctx)
	defer r.group.Wait()
	defer cancel()
	w.mu.Lock()
	w.runs[id] = r
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.runs, id)
		w.mu.Unlock()
	}()
	r.spent, r.started = job.Spent, time.Now().Add(-job.Spent)
	// Before the request is sent: a worker that reads nothing blocks that.
	if job.Wasm != nil && job.Wasm.Module != nil {
		r.loading = true
		r.endBy(compileWall, compileReason)
		go r.watchCompile()
	} else {
		r.endBy(time.Until(r.started.Add(req.Limits.Wall+overstay)), wallReason)
	}
	defer r.end()
	stop := context.AfterFunc(ctx, r.cancel)
	defer stop()
	if err := w.conn.Send(b); err != nil {
		w.fail("it takes no request", err)
	}
	if err := r.begin(); err != nil {
		r.cancel()
		// What is said meanwhile is for nobody; see wait. When the worker has
		// given the run back, nothing of it is left.
		_, _ = r.wait(ctx)
		return nil, err
	}
	return r.wait(ctx)
}

// begin has the host do what comes before all that the worker may ask and say.
// Calls wait for it, and the rest is not looked at before.
func (r *remote) begin() error {
	if r.start == nil {
		return nil
	}
	err := r.start.Started()
	r.mu.Lock()
	r.starting, r.refused = false, err != nil
	r.mu.Unlock()
	if err == nil {
		close(r.begun)
	}
	return err
}

// wallReason is why a worker ends that keeps a run.
const wallReason = "a run overstayed its wall time"

// endBy kills the worker after a time, in place of what was said before.
func (r *remote) endBy(d time.Duration, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(d, reason)
}

func (r *remote) endLocked(d time.Duration, reason string) {
	if r.over {
		return
	}
	if r.late != nil {
		r.late.Stop()
	}
	r.late = time.AfterFunc(d, func() {
		r.mu.Lock()
		if r.starting {
			// The run may have ended long ago.
			r.late.Reset(overstay)
			r.mu.Unlock()
			return
		}
		over := r.over
		r.overstayed = !over
		r.mu.Unlock()
		if !over {
			r.w.fail(reason, nil)
		}
	})
}

// wall is the time that has passed.
func (r *remote) wall() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.started)
}

// end is when the worker has given the run back.
func (r *remote) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.late.Stop()
}

// cancel asks the worker to end the run, which has some time for it.
func (r *remote) cancel() {
	left := r.req.Limits.Wall - r.wall()
	r.endBy(overstay+min(left, 0), "a run did not end when it was cancelled")
	f := frame{kind: frameCancel, run: r.id}
	if err := r.w.conn.Send(f.encode(nil)); err != nil {
		r.w.fail("it takes no request", err)
	}
}

// wait passes events on in their order until there is a result. Of all who wait
// for a worker one reads what it says, for all: a result that comes alone, as
// most do, wakes nobody but the goroutine that answers with it.
func (r *remote) wait(ctx context.Context) (*Result, error) {
	for {
		if res := r.handOn(); res != nil {
			return res, nil
		}
		select {
		case <-r.notify:
		case <-r.w.reading:
			r.w.await()
			r.w.receive(r.notify)
			r.w.reading <- struct{}{}
		case <-r.w.dead:
			return r.lost(ctx)
		}
	}
}

// lost is how a run ends whose worker is dead.
func (r *remote) lost(ctx context.Context) (*Result, error) {
	if res := r.handOn(); res != nil {
		return res, nil
	}
	r.mu.Lock()
	mine, loading := r.overstayed, r.loading
	r.mu.Unlock()
	r.w.mu.Lock()
	closed := r.w.reason == closedReason
	r.w.mu.Unlock()
	switch {
	case loading && !closed && ctx.Err() == nil:
		// Nothing else ran there, so it is the module's doing.
		return r.compileFailed(mine), nil
	case mine && ctx.Err() != nil:
		return r.killed(&Error{Kind: KindCanceled, Message: "the caller has ended the run"}), nil
	case mine:
		return r.killed(limitError("wall", r.wall().Round(time.Millisecond), r.req.Limits.Wall)), nil
	}
	return nil, r.workerError()
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

func (r *remote) workerError() error {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.w.reason == closedReason {
		return ErrClosed
	}
	return &WorkerError{Worker: r.w.index, Reason: r.w.reason, Phase: r.phase(), Err: r.w.cause}
}

// phase is how far the run can have come, by what the worker asked for.
func (r *remote) phase() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made > 0 {
		return PhaseEffectsPossible
	}
	return PhaseStarted
}

// killed is the result of a run whose worker had to be killed for it.
func (r *remote) killed(e *Error) *Result {
	r.mu.Lock()
	u := Usage{Wall: time.Since(r.started), Calls: r.made, Requests: r.requests, Output: r.output}
	r.mu.Unlock()
	return &Result{Status: StatusKilled, Phase: r.phase(), Error: e, Usage: u}
}

// handOn gives the host what has come in, and is the result if there is one.
func (r *remote) handOn() *Result {
	r.mu.Lock()
	events, res, refused := r.inbox, r.result, r.refused
	r.inbox = nil
	r.mu.Unlock()
	if !refused {
		for _, e := range events {
			r.host.Event(e)
		}
	}
	return res
}

func (r *remote) wake() {
	select {
	case r.notify <- struct{}{}:
	default:
	}
}

// take handles a frame of this run. An error means that the worker broke the
// protocol: a sound one keeps the limits itself.
func (r *remote) take(f *frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result != nil {
		return nil
	}
	switch f.kind {
	case frameEvent:
		return r.takeEvent(f)
	case frameCall:
		return r.takeCall(f)
	case frameDrop:
		if cancel := r.calls[f.call]; cancel != nil {
			cancel()
		}
		return nil
	case frameLoaded:
		return r.takeLoaded()
	case frameNeed:
		return r.takeNeed()
	case frameWaiting:
		if r.order == nil || !r.req.Paced || f.call > uint64(r.req.Limits.Calls) {
			return fmt.Errorf("%w: nobody asked whether it waits", errFrame)
		}
		r.order.Waiting(int(f.call))
		return nil
	}
	res, err := decode[Result](f.data)
	if err != nil {
		return err
	}
	if err := r.checkResult(res); err != nil {
		return err
	}
	r.result = res
	r.wake()
	return nil
}

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

func (r *remote) takeEvent(f *frame) error {
	e, err := decode[Event](f.data)
	if err != nil {
		return err
	}
	r.events++
	r.output += outputOf(e.Message, string(e.Data))
	if r.output > r.req.Limits.Output+eventSlack || r.events > maxLines+maxRejections {
		return fmt.Errorf("%w: more output than allowed", errFrame)
	}
	switch e.Level {
	case "debug", "info", "warn", "error":
	default:
		return fmt.Errorf("%w: level of an event", errFrame)
	}
	if e.Kind != eventStdout && e.Kind != eventStderr || r.req.Language != languagePython && r.req.Language != languageWasm {
		e.Kind = eventLog
	}
	if len(e.Data) > 0 && !validJSON(e.Data) {
		return fmt.Errorf("%w: data of an event", errFrame)
	}
	// Other years have no JSON, and would make the whole record unreadable.
	if e.Time = e.Time.UTC(); e.Time.Year() < 1970 || e.Time.Year() > 9999 {
		return fmt.Errorf("%w: time of an event", errFrame)
	}
	e.Message = strings.ToValidUTF8(e.Message, "\uFFFD")
	r.inbox = append(r.inbox, *e)
	r.wake()
	return nil
}

// eventSlack is for what a worker reports beside the code's own output.
const eventSlack = 1 << 20

func (r *remote) takeCall(f *frame) error {
	l := &r.req.Limits
	r.made++
	if f.binding == fetchBinding {
		r.requests++
	}
	switch {
	case !r.req.granted(f.binding, f.method):
		return fmt.Errorf("%w: a call of what was not granted", errFrame)
	case r.made > l.Calls || r.requests > l.Requests || len(r.calls) >= l.Concurrency+1:
		return fmt.Errorf("%w: more calls than allowed", errFrame)
	case len(f.data) > MaxArgs || !validJSON(f.data):
		return fmt.Errorf("%w: arguments of a call", errFrame)
	case f.call <= r.last || f.call > uint64(l.Calls):
		return fmt.Errorf("%w: number of a call", errFrame)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	if r.calls == nil {
		r.calls = map[uint64]context.CancelFunc{}
	}
	r.calls[f.call], r.last = cancel, f.call
	id, c := f.call, Call{Nth: int(f.call), Binding: f.binding, Method: f.method, Args: f.data}
	if r.order != nil {
		r.order.Called(c.Nth)
	}
	r.group.Go(func() {
		value, err := r.ask(ctx, c)
		cancel()
		r.mu.Lock()
		delete(r.calls, id)
		r.mu.Unlock()
		r.reply(id, value, err)
	})
	return nil
}

// ask has the host answer a call, when it has begun.
func (r *remote) ask(ctx context.Context, c Call) (json.RawMessage, error) {
	if r.begun != nil {
		select {
		case <-r.begun:
		case <-r.ctx.Done():
			return nil, r.ctx.Err()
		}
	}
	return r.host.Call(ctx, c)
}

// reply sends the answer of a call.
func (r *remote) reply(id uint64, value json.RawMessage, err error) {
	if r.order != nil {
		r.answering.Lock()
		defer r.answering.Unlock()
	}
	if r.ctx.Err() != nil {
		return // the run ends, and shall not learn of it as a failed call
	}
	f := frame{kind: frameAnswer, run: r.id, call: id, ok: err == nil, data: value}
	if err == nil && len(value) > MaxAnswer {
		f.ok, err = false, fmt.Errorf("the answer has %d bytes, at most %d are taken", len(value), MaxAnswer)
	}
	if err != nil {
		f.binding, f.data = cut(err.Error(), maxMessage), nil
	}
	if r.order != nil {
		r.order.Answered(int(id), f.data, err)
	}
	if err := r.w.conn.Send(f.encode(nil)); err != nil && !r.w.failed() {
		r.w.pool.log.LogAttrs(context.Background(), slog.LevelWarn, "an answer did not reach the isolate worker",
			slog.Int("worker", r.w.index), slog.Any("error", err))
	}
}

// checkResult refuses a result that a sound worker does not give.
func (r *remote) checkResult(res *Result) error {
	bad := errors.Join(errFrame, errors.New("result"))
	switch res.Status {
	case StatusOK:
		none := r.req.Language == languageWasm && len(res.Value) == 0
		if res.Error != nil || int64(len(res.Value)) > r.req.Limits.Result || !none && !validJSON(res.Value) {
			return bad
		}
	case StatusError, StatusKilled:
		if res.Error == nil {
			return bad
		}
		res.Value = nil
		e := res.Error
		for _, s := range []*string{&e.Kind, &e.Message, &e.File, &e.Source, &e.Stack, &e.Limit, &e.Used, &e.Allowed, &e.Hint} {
			*s = strings.ToValidUTF8(cut(*s, maxStackText), "\uFFFD")
		}
	default:
		return bad
	}
	if r.req.Language != languageWasm {
		res.ExitCode = nil
	}
	switch res.Phase {
	case PhaseNotStarted, PhaseStarted, PhaseEffectsPossible, PhaseFinished:
	default:
		return bad
	}
	if (res.Prepared != nil) != (r.req.Prepare && res.Status == StatusOK) {
		return bad
	}
	if p := res.Prepared; p != nil {
		p.Reason = strings.ToValidUTF8(cut(p.Reason, maxMessage), "\uFFFD")
	}
	// What can be counted here is not the worker's to say.
	res.Usage.Calls, res.Usage.Requests = max(res.Usage.Calls, r.made), max(res.Usage.Requests, r.requests)
	if r.made > 0 && (res.Phase == PhaseNotStarted || res.Phase == PhaseStarted) {
		res.Phase = PhaseEffectsPossible
	}
	return nil
}
