package isolate

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// A caller makes the host calls of a run. It hands over their answers one by
// one, in the order in which the code gets them: a run that is recorded can only
// be run again because there is one.
type caller interface {
	// call makes a call and returns at once. answered is called once, by another
	// goroutine and not while that of another call is; it must not block. drop
	// says that nobody wants the answer any more, which comes nonetheless: its
	// place in the order has to be there.
	call(c Call, answered func(json.RawMessage, error)) (drop func())
	// taken gives back what an answer of so many bytes was counted for.
	taken(size int)
	// waiting says that the run took so many answers and needs the next one.
	waiting(taken int)
	// end is called when the run is over. It gives the host time to return, so
	// that it sees no call after the run, unless it does not heed its context.
	end()
}

// callerOf is how a run reaches host. ctx is the run's own.
func callerOf(ctx context.Context, host Host) caller {
	if c, ok := host.(caller); ok {
		return c
	}
	l := &localCalls{host: host, ctx: ctx}
	l.order, _ = host.(OrderHost)
	return l
}

// localCalls are calls of a host in this process.
type localCalls struct {
	host  Host
	order OrderHost // host, if it is one
	ctx   context.Context
	group sync.WaitGroup
	mu    sync.Mutex // held while an answer is handed over
}

func (l *localCalls) call(c Call, answered func(json.RawMessage, error)) func() {
	ctx, cancel := context.WithCancel(l.ctx)
	if l.order != nil {
		l.order.Called(c.Nth)
	}
	l.group.Go(func() {
		defer cancel()
		v, err := l.host.Call(ctx, c)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ctx.Err() != nil {
			return // the run ends, and shall not learn of it as a failed call
		}
		if l.order != nil {
			l.order.Answered(c.Nth, v, err)
		}
		answered(v, err)
	})
	return cancel
}

func (l *localCalls) taken(int) {}

func (l *localCalls) waiting(taken int) {
	if l.order != nil {
		l.order.Waiting(taken)
	}
}

// grace is how long a run waits for host calls that it has cancelled.
const grace = 50 * time.Millisecond

func (l *localCalls) end() {
	done := make(chan struct{})
	go func() { l.group.Wait(); close(done) }()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
