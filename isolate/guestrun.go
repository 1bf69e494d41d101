package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A guestRun is what runs have in common whose guest waits for each host call:
// limits, clocks, output and calls. All of it happens on one goroutine.
type guestRun struct {
	req  *Request
	host Host
	fuel func() int64 // that the guest has used

	ctx     context.Context // ends with the wall limit or the caller
	started time.Time
	usage   Usage
	lines   int
	phase   string
	random  randomness
	clock   clock
	time    cpuTime
	streams [2]stream // stdout and stderr
	calls   caller
	settled int // calls that the host has answered
	outcome *outcome
	prep    *preparing // nil in a call
}

// begin prepares a run of a job. The caller calls end when it is over.
func (r *guestRun) begin(ctx context.Context, job *jobMessage, host Host, fuel func() int64) (end func()) {
	*r = guestRun{req: job.Request, host: host, fuel: fuel, started: time.Now().Add(-job.Spent), phase: PhaseNotStarted}
	r.streams[0].kind, r.streams[1].kind = eventStdout, eventStderr
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithDeadlineCause(ctx, r.started.Add(r.req.Limits.Wall), errWall)
	r.random, r.clock = newRandomness(r.req.Seed), newClock(r.req.Clock, r.started)
	r.calls = callerOf(r.ctx, host)
	r.time = cpuTime{ctx: r.ctx, tenant: r.req.Tenant}
	r.time.start()
	return func() {
		r.time.end()
		cancel()
	}
}

const (
	// streamChunk is how much of a stream makes an event.
	streamChunk = 8 << 10
	// streamDelay is how long a line may wait for others.
	streamDelay = 20 * time.Millisecond
)

// A stream gathers output, so that a line is not an event.
type stream struct {
	kind  string
	buf   []byte
	since time.Duration // as age counts
}

// age is the time since the run began, or where the run must end as it did
// before, the work done: what makes an event shows in what is counted.
func (r *guestRun) age() time.Duration {
	if r.req.deterministic() {
		return r.cpu()
	}
	return time.Since(r.started)
}

// Write implements the Hooks of engines.
func (r *guestRun) Write(fd int, b []byte) error {
	if err := r.prep.refuse(whyPrints); err != nil {
		return err
	}
	if over := r.usage.Output + int64(len(b)); over > r.req.Limits.Output {
		return limitError("output", over, r.req.Limits.Output)
	}
	// What is on the other stream comes first.
	if other := &r.streams[2-fd]; len(other.buf) > 0 {
		if err := r.send(other, true); err != nil {
			return err
		}
	}
	s := &r.streams[fd-1]
	if len(s.buf) == 0 {
		s.since = r.age()
	}
	for len(b) > 0 {
		n := min(len(b), streamChunk)
		s.buf = append(s.buf, b[:n]...)
		b = b[n:]
		if len(s.buf) >= streamChunk {
			if err := r.send(s, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// send makes an event of what a stream holds; unless all is asked for, without
// a character that is not there to its end.
func (r *guestRun) send(s *stream, all bool) error {
	n := len(s.buf)
	if !all {
		for i := 1; i <= utf8.UTFMax && i <= n; i++ {
			if c := s.buf[n-i]; utf8.RuneStart(c) {
				if !utf8.FullRune(s.buf[n-i:]) {
					n -= i
				}
				break
			}
		}
	}
	if n == 0 {
		return nil
	}
	e := Event{Kind: s.kind, Level: "info", Message: string(s.buf[:n])}
	if s.kind == eventStderr {
		e.Level = "warn"
	}
	s.buf = append(s.buf[:0], s.buf[n:]...)
	s.since = r.age()
	return r.emit(e)
}

// flush sends what the streams hold: all, or what has waited long enough.
func (r *guestRun) flush(all bool) error {
	for i := range r.streams {
		s := &r.streams[i]
		if len(s.buf) > 0 && (all || r.age()-s.since >= streamDelay) {
			if err := r.send(s, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// A reply is the answer of a host call: a value, or an error for the code.
type reply struct {
	value json.RawMessage
	err   error
}

// ask makes a host call and waits for its answer. An error ends the run.
func (r *guestRun) ask(c Call) (reply, error) {
	if err := r.prep.refuse(whyCalls); err != nil {
		return reply{}, err
	}
	if !r.req.granted(c.Binding, c.Method) {
		return reply{}, &Error{Kind: KindThrown, Message: "the code called " + cut(c.Binding+"."+c.Method, 100) + ", which it was not granted"}
	}
	if r.usage.Calls++; r.usage.Calls > r.req.Limits.Calls {
		return reply{}, limitError("calls", r.usage.Calls, r.req.Limits.Calls)
	}
	if c.Binding == fetchBinding {
		if r.usage.Requests++; r.usage.Requests > r.req.Limits.Requests {
			return reply{}, limitError("requests", r.usage.Requests, r.req.Limits.Requests)
		}
	}
	if len(c.Args) > MaxArgs || !validJSON(c.Args) {
		return reply{err: fmt.Errorf("the arguments have %d bytes, at most %d are taken", len(c.Args), MaxArgs)}, nil
	}
	if err := r.flush(true); err != nil {
		return reply{}, err
	}
	r.phase = PhaseEffectsPossible
	r.time.pause()
	defer r.time.start()
	// A host that does not heed the context must not hold the run.
	answered := make(chan reply, 1)
	c.Nth = r.usage.Calls
	r.calls.call(c, func(v json.RawMessage, err error) { answered <- reply{v, err} })
	if r.req.Paced {
		r.calls.waiting(r.settled)
	}
	select {
	case a := <-answered:
		r.settled++
		r.calls.taken(len(a.value))
		switch {
		case r.ctx.Err() != nil:
			return reply{}, r.ended()
		case a.err != nil:
			return reply{err: a.err}, nil
		case len(a.value) > MaxAnswer:
			return reply{err: fmt.Errorf("the answer has %d bytes, at most %d are taken", len(a.value), MaxAnswer)}, nil
		case len(a.value) == 0:
			a.value = json.RawMessage("null")
		}
		return a, nil
	case <-r.ctx.Done():
		r.calls.end()
		return reply{}, r.ended()
	}
}

// emit counts an event and passes it on.
func (r *guestRun) emit(e Event) error {
	e.Time, e.Message = r.clock.wall(), strings.ToValidUTF8(e.Message, "\uFFFD")
	if err := countOutput(&e, &r.usage, &r.lines, r.req.Limits.Output); err != nil {
		return err
	}
	r.host.Event(e)
	return nil
}

// ended says why ctx is done.
func (r *guestRun) ended() error {
	if errors.Is(context.Cause(r.ctx), errWall) {
		return limitError("wall", time.Since(r.started).Round(time.Millisecond), r.req.Limits.Wall)
	}
	return &Error{Kind: KindCanceled, Message: "the caller has ended the run"}
}

func (r *guestRun) log(level, message, data string) error {
	if err := r.prep.refuse(whyPrints); err != nil {
		return err
	}
	switch level {
	case "debug", "info", "warn", "error":
	default:
		level = "info"
	}
	if over := r.usage.Output + outputOf(message, data); over > r.req.Limits.Output {
		return limitError("output", over, r.req.Limits.Output)
	}
	e := Event{Kind: eventLog, Level: level, Message: message}
	if data != "" && validJSON([]byte(data)) {
		e.Data = json.RawMessage(data)
	}
	if err := r.flush(true); err != nil {
		return err
	}
	return r.emit(e)
}

// Tick implements the Hooks of engines.
func (r *guestRun) Tick() error {
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
	return r.flush(false)
}

func (r *guestRun) cpu() time.Duration {
	if r.req.deterministic() {
		return time.Duration(r.fuel()) * time.Microsecond / fuelPerMicrosecond
	}
	return r.time.now()
}

// Now implements the Hooks of engines.
func (r *guestRun) Now() (realtime, monotonic int64, err error) {
	if err := r.prep.refuse(whyClock); err != nil {
		return 0, 0, err
	}
	realtime, monotonic = r.clock.now()
	return realtime, monotonic, nil
}

// Sleep implements the Hooks of engines.
func (r *guestRun) Sleep(ns int64) error {
	if err := r.prep.refuse(whyTimers); err != nil {
		return err
	}
	d := time.Duration(ns)
	if r.clock.virtual() {
		r.clock.advance(r.clock.elapsed() + min(d, maxWall))
		return nil
	}
	if err := r.flush(true); err != nil {
		return err
	}
	r.time.pause()
	defer r.time.start()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.ctx.Done():
		return r.ended()
	}
}

// Random implements the Hooks of engines.
func (r *guestRun) Random(b []byte) {
	r.prep.note(whyRandom)
	r.random.Read(b)
}

// Large implements the Hooks of engines.
func (r *guestRun) Large() { r.time.large() }

func (r *guestRun) done(value string) error {
	if r.outcome != nil {
		return nil
	}
	if int64(len(value)) > r.req.Limits.Result {
		return limitError("result", len(value), r.req.Limits.Result)
	}
	raw := json.RawMessage(value)
	if !validJSON(raw) {
		return &Error{Kind: KindThrown, Message: "the result is not JSON"}
	}
	r.outcome = &outcome{value: raw}
	return nil
}
