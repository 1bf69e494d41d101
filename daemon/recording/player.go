package recording

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"sandboxd/isolate"
)

// A DivergedError says that a replay did something else than the recorded run.
type DivergedError struct {
	// Nth is the call's number.
	Nth int
	// Recorded is the call that the recorded run made there, Came the one that
	// the replay made; "" if it made none.
	Recorded, Came string
	why            string
}

func (e *DivergedError) Error() string {
	return fmt.Sprintf("the replay diverged at call %d: %s", e.Nth, e.why)
}

// ErrEnds says that a replay came to where the recording ends: the recorded run
// waited for answers there when it was ended.
var ErrEnds = errors.New("the recording ends here")

// A Player answers the calls of a replay out of a recording, each in its turn.
type Player struct {
	rec   *Recording
	calls map[int]*Call
	// end ends the replay.
	end func(error)

	mu      sync.Mutex
	came    map[int]bool  // guarded by mu: calls that the replay made
	checked int           // guarded by mu: of them, those held against the recording
	given   int           // guarded by mu: answers that the code has
	taken   int           // guarded by mu: answers that it had when it last waited; -1 at first
	failed  error         // guarded by mu: why the replay was ended
	changed chan struct{} // guarded by mu: closed with each change of the above
}

// NewPlayer makes a Player. end is called at most once, with a *DivergedError or
// ErrEnds, and must not block.
func NewPlayer(rec *Recording, end func(error)) *Player {
	p := &Player{rec: rec, calls: map[int]*Call{}, end: end, came: map[int]bool{}, taken: -1, changed: make(chan struct{})}
	for i := range rec.Calls {
		p.calls[rec.Calls[i].Nth] = &rec.Calls[i]
	}
	return p
}

// signal wakes those who wait. p.mu is held.
func (p *Player) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// fail ends the replay. p.mu is held.
func (p *Player) fail(err error) {
	if p.failed == nil {
		p.failed = err
		p.signal()
		p.end(err)
	}
}

// Failed is why the Player has ended the replay, nil if it has not.
func (p *Player) Failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Called notes a call, before Call answers it.
func (p *Player) Called(nth int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came[nth] = true
}

// Call gives the recorded answer once all the answers before it were given. It
// returns early with ctx, which must be that of the whole replay: also a call
// whose answer nobody wants has its turn.
func (p *Player) Call(ctx context.Context, c isolate.Call) (json.RawMessage, error) {
	call := p.calls[c.Nth]
	err := p.check(call, c)
	p.mu.Lock()
	if p.checked++; err != nil {
		p.fail(err)
	}
	p.stalled()
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for {
		p.mu.Lock()
		turn := p.given < len(p.rec.Order) && p.rec.Order[p.given] == c.Nth
		failed, changed := p.failed, p.changed
		p.mu.Unlock()
		switch {
		case failed != nil:
			return nil, failed
		case turn && call.Failed != nil:
			return nil, errors.New(*call.Failed)
		case turn:
			return call.Answer, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// check holds a call against the recorded one, nil if there is none.
func (p *Player) check(call *Call, c isolate.Call) error {
	now := describe(c)
	switch {
	case call == nil:
		return &DivergedError{Nth: c.Nth, Came: now.String(), why: fmt.Sprintf("it calls %s, the recorded run made %d calls", now.String(), len(p.rec.Calls))}
	case call.Binding != now.Binding || call.Method != now.Method:
		return &DivergedError{Nth: c.Nth, Recorded: call.String(), Came: now.String(), why: fmt.Sprintf("it calls %s, the recorded run called %s", now.String(), call.String())}
	case call.ArgsSHA256 != now.ArgsSHA256:
		return &DivergedError{Nth: c.Nth, Recorded: call.String(), Came: now.String(),
			why: fmt.Sprintf("it calls %s, the recorded run called %s (SHA-256 of the arguments %.12s, recorded %.12s)", now.String(), call.String(), now.ArgsSHA256, call.ArgsSHA256)}
	}
	return nil
}

// Answered notes that the code gets the answer of call nth next.
func (p *Player) Answered(nth int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil && p.given < len(p.rec.Order) && p.rec.Order[p.given] == nth {
		p.given++
		p.signal()
	}
}

// Waiting notes that the code took so many answers and needs the next one. If
// that belongs to a call that was not made, it would wait for ever.
func (p *Player) Waiting(taken int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = taken
	p.stalled()
}

// stalled ends a replay that waits for what does not come. p.mu is held.
func (p *Player) stalled() {
	if p.taken < p.given || p.checked < len(p.came) {
		return // an answer is on its way, or a call that says more
	}
	if p.given == len(p.rec.Order) {
		p.fail(ErrEnds)
		return
	}
	nth := p.rec.Order[p.given]
	if p.came[nth] {
		return
	}
	call := p.calls[nth]
	p.fail(&DivergedError{Nth: nth, Recorded: call.String(), why: fmt.Sprintf("it waits, the recorded run had called %s before it had its next answer", call.String())})
}

// Missing is the first recorded call that the replay did not make, nil if it
// made all.
func (p *Player) Missing() *Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.rec.Calls {
		if c := &p.rec.Calls[i]; !p.came[c.Nth] {
			return c
		}
	}
	return nil
}
