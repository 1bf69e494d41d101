package isolate

import (
	"context"
	"math"
	"sync"
	"time"
)

// turns let one run of a process compute at a time. A worker has one processor:
// were its runs goroutines like any other, a small call would wait for a slice
// of each that computes, and who starts many runs would have most of it. Here
// the next turn is the tenant's that has used the least lately, so that a call
// waits for the rest of one slice, whatever others do.
type turns struct {
	mu    sync.Mutex
	taken bool
	queue []*turn
	spent map[string]spent

	// incoming waits until what has come in for the process is read.
	incoming func()
}

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
)

func newTurns() *turns { return &turns{spent: map[string]spent{}, incoming: func() {}} }

// ourTurns are those of this process; nil means that runs share the processors
// as goroutines do, which only a worker changes.
var ourTurns *turns

// take waits for a turn of a run that has used so much. False means that ctx
// was done before.
func (t *turns) take(ctx context.Context, tenant string, used time.Duration) bool {
	t.mu.Lock()
	if !t.taken {
		t.taken = true
		t.mu.Unlock()
		return true
	}
	w := &turn{tenant, used, make(chan struct{})}
	t.queue = append(t.queue, w)
	t.mu.Unlock()
	select {
	case <-w.ready:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, other := range t.queue {
		if other == w {
			t.queue = append(t.queue[:i], t.queue[i+1:]...)
			return false
		}
	}
	return true // it came just now
}

// give ends a turn in which a tenant has used so much.
func (t *turns) give(tenant string, used time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if len(t.spent) >= maxSpent {
		t.forget(now)
	}
	t.spent[tenant] = spent{t.spent[tenant].left(now) + used, now}
	best := -1
	for i, w := range t.queue {
		if best < 0 || t.before(w, t.queue[best], now) {
			best = i
		}
	}
	if best < 0 {
		t.taken = false
		return
	}
	w := t.queue[best]
	t.queue = append(t.queue[:best], t.queue[best+1:]...)
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
func (t *turns) wanted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queue) > 0
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
