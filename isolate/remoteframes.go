package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

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
