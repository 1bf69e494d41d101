package isolate

import (
	"context"
	"sync"
	"time"
)

// placeWait is how long a run waits for a place before it is turned away.
const placeWait = time.Second

// places are those of the runs under way in a pool. A tenant has at most half of
// what the other tenants leave: the first one half, the second a quarter and so
// on, so that a newcomer finds a place although nobody is ended for it.
type places struct {
	max int

	mu      sync.Mutex
	closed  bool
	running int
	tenants map[string]int // running, by tenant
	queue   []*waiting     // in the order in which they came
}

// A waiting is a run without a place.
type waiting struct {
	tenant string
	ready  chan error // one place
}

func newPlaces(n int) *places { return &places{max: n, tenants: map[string]int{}} }

// take gives a run a place, at once or within placeWait. The error is ErrBusy,
// ErrClosed or the context's.
func (p *places) take(ctx context.Context, tenant string) error {
	p.mu.Lock()
	switch {
	case p.closed:
		p.mu.Unlock()
		return ErrClosed
	case p.fits(tenant):
		p.add(tenant)
		p.mu.Unlock()
		return nil
	case !p.mayWait(tenant):
		p.mu.Unlock()
		return ErrBusy
	}
	w := &waiting{tenant, make(chan error, 1)}
	p.queue = append(p.queue, w)
	p.mu.Unlock()
	late := time.NewTimer(placeWait)
	defer late.Stop()
	err := ErrBusy
	select {
	case err := <-w.ready:
		return err
	case <-late.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.queue {
		if other == w {
			p.queue = append(p.queue[:i], p.queue[i+1:]...)
			return err
		}
	}
	return <-w.ready // it was answered just now
}

// fits tells whether the tenant may have one more; p.mu is held.
func (p *places) fits(tenant string) bool {
	own := p.tenants[tenant]
	return p.running < p.max && own < max(1, (p.max-(p.running-own))/2)
}

// mayWait bounds those who wait, and those of one tenant to half; p.mu is held.
func (p *places) mayWait(tenant string) bool {
	own := 0
	for _, w := range p.queue {
		if w.tenant == tenant {
			own++
		}
	}
	return len(p.queue) < p.max && own < max(1, p.max/2)
}

func (p *places) add(tenant string) {
	p.running++
	p.tenants[tenant]++
}

// give takes a run's place back, and gives places to those who may have them:
// first to the tenant that has the fewest, then to who came first.
func (p *places) give(tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if p.tenants[tenant]--; p.tenants[tenant] == 0 {
		delete(p.tenants, tenant)
	}
	for len(p.queue) > 0 {
		best := -1
		for i, w := range p.queue {
			if p.fits(w.tenant) && (best < 0 || p.tenants[w.tenant] < p.tenants[p.queue[best].tenant]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		w := p.queue[best]
		p.queue = append(p.queue[:best], p.queue[best+1:]...)
		p.add(w.tenant)
		w.ready <- nil
	}
}

// count is the number of places that are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// close turns all away.
func (p *places) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, w := range p.queue {
		w.ready <- ErrClosed
	}
	p.queue = nil
}
