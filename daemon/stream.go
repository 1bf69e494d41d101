package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"strings"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/jail"
)

// slowReader is how long a follower may keep one event waiting.
const slowReader = time.Minute

// stream answers with events, one JSON line each. An error before the first is
// an ordinary error answer; a later one is the last line.
func (d *Daemon) stream(q *request, events iter.Seq2[api.Event, error]) error {
	rc := http.NewResponseController(q.w)
	begun := false
	begin := func() {
		if !begun {
			q.w.Header().Set("Content-Type", "application/x-ndjson")
			q.w.Header().Set("Cache-Control", "no-store")
			q.w.WriteHeader(http.StatusOK)
			begun = true
		}
	}
	var last uint64
	write := func(e *api.Event) error {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if err := rc.SetWriteDeadline(time.Now().Add(slowReader)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if _, err := q.w.Write(append(line, '\n')); err != nil {
			return err
		}
		return rc.Flush()
	}
	for e, err := range events {
		if err != nil {
			if !begun {
				return err
			}
			e = api.Event{Seq: last, Time: time.Now().UTC(), Type: api.EventError, Error: toAPI(err)}
		}
		begin()
		last = e.Seq
		if werr := write(&e); werr != nil {
			d.log.Debug("a follower went away", "route", q.route.Name, "error", werr)
			return nil
		}
		if err != nil {
			return nil
		}
	}
	begin()
	// The connection may serve other requests after this one.
	if err := rc.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// events are the command's events as the API shows them. The jail's own
// numbers stay: its last event, the exit, becomes the result.
func (e *execution) events(ctx context.Context, after uint64, follow bool) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		for ev, err := range e.proc.Events(ctx, after, follow) {
			if err != nil {
				yield(api.Event{}, err)
				return
			}
			out, err := e.event(ctx, &ev)
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

func (e *execution) event(ctx context.Context, ev *jail.Event) (api.Event, error) {
	out := api.Event{Seq: ev.Seq, Time: ev.Time}
	switch ev.Kind {
	case jail.EventStarted:
		out.Type, out.ExecID = api.EventStarted, e.id
	case jail.EventStdout, jail.EventStderr:
		out.Type = ev.Kind
		out.SetData(ev.Data)
	case jail.EventExit:
		// The receipt is part of the result.
		select {
		case <-e.done:
		case <-ctx.Done():
			return out, ctx.Err()
		}
		p := e.describe()
		out.Type, out.ExecID, out.Exec = api.EventResult, e.id, &p
	}
	return out, nil
}

// validText makes output fit into a JSON string; the events have it exactly.
func validText(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
