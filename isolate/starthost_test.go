package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// startingHost is a StartHost.
type startingHost struct {
	fakeHost
	started func() error
}

func (h *startingHost) Started() error { return h.started() }

const callingCode = `export default async (input, env) => { console.log("here"); return await env.KV.put("k", 1); }`

func callingRequest() *Request {
	req := js(callingCode)
	req.Bindings = []Binding{{Name: "KV", Methods: []string{"put"}}}
	return req
}

// A run that the host does not let begin has no effect, and the worker goes on.
func TestRefusedStartHasNoEffect(t *testing.T) {
	p := newWorkers(t, 1)
	worker := p.workers[0]
	full := errors.New("the log is full")
	for name, req := range map[string]*Request{
		"call":    callingRequest(),
		"result":  js(`export default () => 1`),
		"endless": js(`export default () => { for (;;); }`),
	} {
		t.Run(name, func(t *testing.T) {
			h := &startingHost{started: func() error { return full }}
			h.call = func(context.Context, Call) (json.RawMessage, error) {
				t.Error("the host was called")
				return nil, nil
			}
			if res, err := p.Run(t.Context(), req, h); !errors.Is(err, full) || res != nil {
				t.Errorf("got %v, %v", res, err)
			}
			if len(h.events) > 0 {
				t.Errorf("events %v", h.events)
			}
		})
	}
	res, err := p.Run(t.Context(), js(`export default () => 7`), &fakeHost{})
	if err != nil || string(res.Value) != "7" {
		t.Errorf("afterwards: %v, %v", res, err)
	}
	if s := p.Stats(); s.Running != 0 || p.workers[0] != worker || worker.failed() {
		t.Errorf("afterwards: %+v", s)
	}
}

// What a worker asks before the host has begun waits for it, though another run
// has read it already.
func TestCallsWaitForTheStart(t *testing.T) {
	p := newWorkers(t, 1)
	asked := func() bool {
		w := p.workers[0]
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, r := range w.runs {
			r.mu.Lock()
			made, events := r.made, len(r.inbox)
			r.mu.Unlock()
			if made > 0 && events > 0 {
				return true
			}
		}
		return false
	}
	var begun atomic.Bool
	h := &startingHost{}
	h.call = func(context.Context, Call) (json.RawMessage, error) {
		if !begun.Load() {
			t.Error("a call was answered before the start")
		}
		return json.RawMessage(`"done"`), nil
	}
	h.started = func() error {
		for !asked() {
			if _, err := p.Run(t.Context(), js(`export default () => 1`), &fakeHost{}); err != nil {
				return err
			}
		}
		h.mu.Lock()
		if len(h.events) > 0 {
			t.Errorf("events before the start: %v", h.events)
		}
		h.mu.Unlock()
		begun.Store(true)
		return nil
	}
	res, err := p.Run(t.Context(), callingRequest(), h)
	if err != nil || string(res.Value) != `"done"` || len(h.events) != 1 {
		t.Errorf("got %v, %v, events %v", res, err, h.events)
	}
}

// A host that is slow to begin costs no worker its life.
func TestSlowStart(t *testing.T) {
	p := newWorkers(t, 1)
	req := js(`export default () => 1`)
	req.Limits.Wall = 100 * time.Millisecond
	h := &startingHost{started: func() error {
		time.Sleep(req.Limits.Wall + 2*overstay)
		return nil
	}}
	res, err := p.Run(t.Context(), req, h)
	if err != nil || string(res.Value) != "1" || p.Stats().Killed != 0 {
		t.Errorf("got %+v, %v, %+v", res, err, p.Stats())
	}
	// One that cannot begin in time is no reason to let the code go on.
	req = js(`export default () => { for (;;); }`)
	req.Limits.Wall = 100 * time.Millisecond
	if res, err = p.Run(t.Context(), req, h); err != nil || res.Status != StatusKilled || res.Usage.Wall > overstay {
		t.Errorf("got %+v, %v", res, err)
	}
}
