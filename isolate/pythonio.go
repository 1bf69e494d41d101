package isolate

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

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
	since time.Time
}

// Write implements cpython.Hooks.
func (r *pythonRun) Write(fd int, b []byte) error {
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
		s.since = time.Now()
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
func (r *pythonRun) send(s *stream, all bool) error {
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
	s.since = time.Now()
	return r.emit(e)
}

// flush sends what the streams hold: all, or what has waited long enough.
func (r *pythonRun) flush(all bool) error {
	for i := range r.streams {
		s := &r.streams[i]
		if len(s.buf) > 0 && (all || time.Since(s.since) >= streamDelay) {
			if err := r.send(s, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// call answers a host call; the guest waits.
func (r *pythonRun) call(c Call) ([]byte, error) {
	if !r.req.granted(c.Binding, c.Method) {
		return nil, &Error{Kind: KindThrown, Message: "the code called " + cut(c.Binding+"."+c.Method, 100) + ", which it was not granted"}
	}
	if r.usage.Calls++; r.usage.Calls > r.req.Limits.Calls {
		return nil, limitError("calls", r.usage.Calls, r.req.Limits.Calls)
	}
	if c.Binding == fetchBinding {
		if r.usage.Requests++; r.usage.Requests > r.req.Limits.Requests {
			return nil, limitError("requests", r.usage.Requests, r.req.Limits.Requests)
		}
	}
	if len(c.Args) > MaxArgs || !json.Valid(c.Args) {
		return refused(fmt.Errorf("the arguments have %d bytes, at most %d are taken", len(c.Args), MaxArgs)), nil
	}
	if err := r.flush(true); err != nil {
		return nil, err
	}
	r.phase = PhaseEffectsPossible
	type reply struct {
		value json.RawMessage
		err   error
	}
	r.time.stop()
	defer r.time.start()
	// A host that does not heed the context must not hold the run.
	answered := make(chan reply, 1)
	go func() {
		v, err := r.host.Call(r.ctx, c)
		answered <- reply{v, err}
	}()
	select {
	case a := <-answered:
		switch {
		case r.ctx.Err() != nil:
			return nil, r.ended()
		case a.err != nil:
			return refused(a.err), nil
		case len(a.value) > MaxAnswer:
			return refused(fmt.Errorf("the answer has %d bytes, at most %d are taken", len(a.value), MaxAnswer)), nil
		}
		if len(a.value) == 0 {
			a.value = json.RawMessage("null")
		}
		return append([]byte{'o'}, a.value...), nil
	case <-r.ctx.Done():
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-answered:
		case <-t.C:
		}
		return nil, r.ended()
	}
}

func refused(err error) []byte { return append([]byte{'e'}, cut(err.Error(), maxMessage)...) }
