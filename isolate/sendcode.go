package isolate

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A job of a function goes to a worker without the code. One that does not keep
// the function asks for it (frameNeed) and is sent it (frameCode).

// A codeMessage is the code of a function, or why it cannot be sent.
type codeMessage struct {
	Code  *functionCode `json:",omitempty"`
	Error *Error        `json:",omitempty"`
}

// takeNeed sends the code of the run's function, once.
func (r *remote) takeNeed() error {
	f := r.req.Function
	if f == nil || r.sent {
		return fmt.Errorf("%w: it asks for code that is not its", errFrame)
	}
	r.sent = true
	r.group.Go(func() {
		b, err := (&frame{kind: frameCode, run: r.id}).encodeWith(r.codeOf(f))
		if err == nil {
			err = r.w.conn.Send(b)
		}
		if err != nil && r.ctx.Err() == nil {
			r.w.fail("it takes no code", err)
		}
	})
	return nil
}

// codeOf compiles what is TypeScript in a function. It may take what is left of
// the call's time.
func (r *remote) codeOf(f *Function) codeMessage {
	ctx, cancel := context.WithDeadline(r.ctx, r.started.Add(r.req.Limits.Wall))
	defer cancel()
	req := *r.req
	req.Modules = f.modules
	units, err := r.w.pool.compiler.prepare(ctx, &req)
	switch {
	case err == nil:
		return codeMessage{Code: &functionCode{Tenant: f.tenant, Language: f.language, Main: f.main, Modules: f.modules, Units: units, Hash: f.hash}}
	case r.ctx.Err() != nil:
		return codeMessage{Error: &Error{Kind: KindCanceled, Message: "the caller has ended the run"}}
	case ctx.Err() != nil:
		return codeMessage{Error: limitError("wall", time.Since(r.started).Round(time.Millisecond), r.req.Limits.Wall)}
	}
	r.w.pool.log.Error("a function's code cannot be compiled", "error", err)
	return codeMessage{Error: &Error{Kind: KindInternal, Message: "the code could not be compiled"}}
}

// functionJob is a request of a function as it goes to a worker.
func functionJob(req *Request) *jobMessage {
	sent := *req
	sent.Modules = nil
	// A deterministic call ends at the same instruction as a run of the code.
	anew := req.Function.anew.Load() || req.deterministic()
	return &jobMessage{Request: &sent, Function: req.Function.key(req), Anew: anew}
}

// code has the daemon send the function's code to the worker.
func (r *workerRun) code(ctx context.Context) (*functionCode, error) {
	if err := r.w.send(&frame{kind: frameNeed, run: r.id}); err != nil {
		return nil, err
	}
	r.w.follow()
	select {
	case m := <-r.codes:
		switch {
		case m.Error != nil:
			return nil, m.Error
		case m.Code == nil:
			return nil, errors.Join(errFrame, errors.New("code"))
		}
		return m.Code, nil
	case <-ctx.Done():
		return nil, &Error{Kind: KindCanceled, Message: "the caller has ended the run"}
	}
}

// runFunction runs a job whose function may have to be sent first.
func (r *workerRun) runFunction(ctx context.Context, job *jobMessage) {
	began := time.Now()
	if err := r.w.engines.hold(ctx, job, r.code); err != nil {
		var e *Error
		if !errors.As(err, &e) {
			r.finish(nil, err)
			return
		}
		res := &Result{Status: StatusError, Phase: PhaseNotStarted, Error: e, Usage: Usage{Wall: job.Spent + time.Since(began)}}
		if e.Kind == KindLimit || e.Kind == KindCanceled {
			res.Status = StatusKilled
		}
		r.finish(res, nil)
		return
	}
	job.Spent += time.Since(began)
	runOn(ctx, r.w.engines, job, r, r.finish)
}
