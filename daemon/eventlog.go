package daemon

import (
	"context"
	"iter"
	"sync"
	"time"

	"sandboxd/daemon/api"
)

const (
	// keepLog is about how many bytes of events one run keeps; older ones go.
	keepLog = 16 << 20
	// eventCost is what an event takes besides its text.
	eventCost = 400
	// joinOutput is how long pieces of output grow that nobody has seen yet.
	joinOutput = 32 << 10
)

// An eventLog keeps the last events of one run for those who follow it, also
// later. What it takes is bounded, whatever the run writes.
type eventLog struct {
	mu      sync.Mutex
	events  []api.Event   // guarded by mu
	first   uint64        // guarded by mu: number of events that have gone
	seen    uint64        // guarded by mu: the last number that was handed out
	bytes   int64         // guarded by mu
	done    bool          // guarded by mu: no more events
	dropped bool          // guarded by mu: history was given up
	wake    chan struct{} // guarded by mu: closed at the next change; nil until somebody waits
}

// append numbers and keeps an event.
func (l *eventLog) append(e api.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	if !l.join(&e) {
		e.Seq = l.last() + 1
		l.events = append(l.events, e)
		l.bytes += eventSize(&e)
	}
	l.done = e.Type == api.EventResult
	if l.bytes > keepLog {
		l.forget()
	}
	l.signal()
}

// last is the number of the newest event. l.mu is held.
func (l *eventLog) last() uint64 { return l.first + uint64(len(l.events)) }

// join adds output to the newest event, when that is of the same kind and
// nobody has seen it: a program that writes single bytes does not make an event
// of each. l.mu is held.
func (l *eventLog) join(e *api.Event) bool {
	if len(l.events) == 0 || l.seen >= l.last() || (e.Type != api.EventStdout && e.Type != api.EventStderr) {
		return false
	}
	newest := &l.events[len(l.events)-1]
	if newest.Type != e.Type || newest.Encoding != "" || e.Encoding != "" || len(newest.Data)+len(e.Data) > joinOutput {
		return false
	}
	newest.Data += e.Data
	l.bytes += int64(len(e.Data))
	return true
}

// forget gives up the older half of the events. l.mu is held.
func (l *eventLog) forget() {
	n := (len(l.events) + 1) / 2
	for i := range l.events[:n] {
		l.bytes -= eventSize(&l.events[i])
	}
	l.events = append([]api.Event(nil), l.events[n:]...)
	l.first += uint64(n)
}

func (l *eventLog) signal() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// eventSize is about what an event takes in memory.
func eventSize(e *api.Event) int64 {
	n := eventCost + len(e.Data)
	if e.Log != nil {
		n += len(e.Log.Message) + len(e.Log.Data)
	}
	if e.Call != nil {
		n += len(e.Call.Args)
	}
	return int64(n)
}

// size is what the log takes in memory.
func (l *eventLog) size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// drop gives up the history; who asks for it gets errHistory.
func (l *eventLog) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events, l.bytes, l.done, l.dropped = nil, 0, true, true
	l.signal()
}

var errHistory = &api.Error{Code: api.CodeGone, Message: "the events of this run are no longer kept", Hint: "the run's record is still at /v1/runs/{run}"}

// next returns the events after seq and, when there are none yet, the channel
// that tells of more.
func (l *eventLog) next(seq uint64) (events []api.Event, wake <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped || seq < l.first {
		return nil, nil, errHistory
	}
	if seq < l.last() {
		l.seen = l.last()
		return l.events[seq-l.first:], nil, nil
	}
	if l.done {
		return nil, nil, nil
	}
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return nil, l.wake, nil
}

// all yields the events after seq; with follow it goes on until the log ends or
// ctx is done.
func (l *eventLog) all(ctx context.Context, after uint64, follow bool) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		for {
			events, wake, err := l.next(after)
			if err != nil {
				yield(api.Event{}, err)
				return
			}
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
				after = e.Seq
			}
			if len(events) > 0 {
				continue
			}
			if wake == nil || !follow {
				return
			}
			select {
			case <-wake:
			case <-ctx.Done():
				return
			}
		}
	}
}
