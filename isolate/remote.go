package isolate

import (
	"context"
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
		if req.Prepare {
			r.started = time.Now()
			r.endBy(compileWall, compileReason)
		} else {
			r.endBy(time.Until(r.started.Add(req.Limits.Wall)), wallReason)
		}
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
	if r.cancelCompile() {
		return
	}
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
	closed, wall := r.w.reason == closedReason, r.w.reason == wallReason
	r.w.mu.Unlock()
	switch {
	case loading && !closed && ctx.Err() == nil:
		// Nothing else ran there, so it is the module's doing.
		return r.compileFailed(mine, wall), nil
	case mine && ctx.Err() != nil:
		return r.killed(&Error{Kind: KindCanceled, Message: "the caller has ended the run"}), nil
	case mine:
		return r.killed(limitError("wall", r.wall().Round(time.Millisecond), r.req.Limits.Wall)), nil
	}
	return nil, r.workerError()
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
