package isolate

import (
	"context"
	"math"
	"runtime"
	"sync"
	"time"
)

// turns let few runs of a process compute at a time: one that is short so far,
// and one that has computed for long. Were they goroutines like any other, a
// small call would wait for a slice of each that computes, and who starts many
// runs would have most of the worker. Here the next turn is the tenant's that
// has used the least lately, so that a call waits for the rest of one slice of
// others that are short, and for the long ones not at all.
type turns struct {
	mu    sync.Mutex
	lanes [2]lane // of short runs and of long ones
	spent map[string]spent

	// incoming waits until what has come in for the process is read; waiting sees
	// to it that it is read while a run waits or computes for long.
	incoming, waiting func()
	// processors sets how many processors the process has.
	processors func(n int)
	long       int // runs that are
	narrow     *time.Timer
}

// A lane is one turn and who waits for it.
type lane struct {
	taken bool
	queue []*turn
}

// Numbers of the lanes.
const (
	shortRuns = iota
	longRuns
)

// A turn is a run that waits to compute.
type turn struct {
	tenant string
	used   time.Duration // by the run
	ready  chan struct{}
}

// spent is a tenant's processor time, of which half is forgotten with each
// halfLife.
type spent struct {
	time time.Duration
	at   time.Time
}

const (
	halfLife = 100 * time.Millisecond
	// maxSpent is how many tenants are remembered.
	maxSpent = 1024
	// shortTime is what a run may have used to count as short.
	shortTime = 10 * time.Millisecond
	// longProcessors is how many processors the process has beside a long run:
	// one for that, one for a short one, and others so that it hears what comes
	// in while the kernel keeps one of these waiting.
	longProcessors = 4
	// narrowAfter is how long no run was long when the process has one
	// processor again: to change that stops all of it for a moment.
	narrowAfter = time.Second
)

func newTurns() *turns {
	return &turns{spent: map[string]spent{}, incoming: func() {}, waiting: func() {}, processors: func(n int) { runtime.GOMAXPROCS(n) }}
}

// ourTurns are those of this process; nil means that runs share the processors
// as goroutines do, which only a worker changes.
var ourTurns *turns

// take waits for a turn of a run that has used so much. False means that ctx
// was done before.
func (t *turns) take(ctx context.Context, lane int, tenant string, used time.Duration) bool {
	t.mu.Lock()
	l := &t.lanes[lane]
	if !l.taken {
		l.taken = true
		t.mu.Unlock()
		return true
	}
	w := &turn{tenant, used, make(chan struct{})}
	l.queue = append(l.queue, w)
	t.mu.Unlock()
	select {
	case <-w.ready:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, other := range l.queue {
		if other == w {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			return false
		}
	}
	return true // it came just now
}

// give ends a turn in which a tenant has used so much.
func (t *turns) give(lane int, tenant string, used time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.lanes[lane]
	now := time.Now()
	if len(t.spent) >= maxSpent {
		t.forget(now)
	}
	t.spent[tenant] = spent{t.spent[tenant].left(now) + used, now}
	best := -1
	for i, w := range l.queue {
		if best < 0 || t.before(w, l.queue[best], now) {
			best = i
		}
	}
	if best < 0 {
		l.taken = false
		return
	}
	w := l.queue[best]
	l.queue = append(l.queue[:best], l.queue[best+1:]...)
	close(w.ready)
}

// before orders by what the tenants have used, and runs of one tenant by what
// they have; else who came first stays first.
func (t *turns) before(a, b *turn, now time.Time) bool {
	if a.tenant == b.tenant {
		return a.used < b.used
	}
	return t.spent[a.tenant].left(now) < t.spent[b.tenant].left(now)
}

// wanted tells whether somebody waits.
func (t *turns) wanted(lane int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lanes[lane].queue) > 0
}

// lengthen counts a run that has become long.
func (t *turns) lengthen() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.long++; t.long > 1 {
		return
	}
	if t.narrow == nil || !t.narrow.Stop() {
		t.processors(longProcessors)
	}
}

// shorten counts a long run that is over.
func (t *turns) shorten() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.long--; t.long > 0 {
		return
	}
	t.narrow = time.AfterFunc(narrowAfter, t.narrowNow)
}

// narrowNow leaves the process one processor, if no run is long.
func (t *turns) narrowNow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.long == 0 && t.narrow != nil {
		t.narrow.Stop()
		t.narrow = nil
		t.processors(1)
	}
}

// forget drops those that have used nothing worth mentioning, or else all.
func (t *turns) forget(now time.Time) {
	for tenant, s := range t.spent {
		if s.left(now) < time.Microsecond {
			delete(t.spent, tenant)
		}
	}
	if len(t.spent) >= maxSpent {
		clear(t.spent)
	}
}

func (s spent) left(now time.Time) time.Duration {
	if s.time == 0 {
		return 0
	}
	return time.Duration(float64(s.time) * math.Exp2(-float64(now.Sub(s.at))/float64(halfLife)))
}
