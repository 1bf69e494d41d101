package daemon

import (
	"context"
	"iter"
	"sync"
	"time"

	"sandboxd/daemon/api"
)

// An eventLog keeps the events of one run for those who follow it, also later.
type eventLog struct {
	mu      sync.Mutex
	events  []api.Event   // guarded by mu
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
	e.Seq = uint64(len(l.events)) + 1
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	l.events = append(l.events, e)
	l.bytes += eventSize(&e)
	l.done = e.Type == api.EventResult
	l.signal()
}

func (l *eventLog) signal() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// eventSize is about what an event takes in memory.
func eventSize(e *api.Event) int64 {
	n := 256 + len(e.Data)
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
	if l.dropped {
		return nil, nil, errHistory
	}
	if seq < uint64(len(l.events)) {
		return l.events[seq:], nil, nil
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
