package isolate

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestPlacesOfTenants(t *testing.T) {
	p := newPlaces(16)
	had := map[string]int{}
	// One after the other takes all that he gets.
	for i := range 8 {
		tenant := fmt.Sprint(i)
		for p.fits(tenant) {
			if err := p.take(t.Context(), tenant); err != nil {
				t.Fatal(err)
			}
			had[tenant]++
		}
	}
	for i, want := range []int{8, 4, 2, 1, 1, 0, 0, 0} {
		if got := had[fmt.Sprint(i)]; got != want {
			t.Errorf("tenant %d has %d places, want %d", i, got, want)
		}
	}
	for tenant, n := range had {
		for range n {
			p.give(tenant)
		}
	}
	if p.count() != 0 || len(p.tenants) != 0 {
		t.Errorf("%+v", p)
	}
}

// TestPlacesAreGivenFairly: of those who wait, the tenant that has the fewest
// comes first, however many another one has in the queue before it.
func TestPlacesAreGivenFairly(t *testing.T) {
	p := newPlaces(4)
	take := func(tenant string) chan error {
		got := make(chan error, 1)
		p.mu.Lock()
		before := len(p.queue)
		p.mu.Unlock()
		go func() { got <- p.take(context.Background(), tenant) }()
		waitFor(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.queue) > before
		})
		return got
	}
	for _, tenant := range []string{"greedy", "greedy", "b", "c"} {
		if err := p.take(t.Context(), tenant); err != nil {
			t.Fatal(err)
		}
	}
	first := take("greedy")
	small := take("small")
	second := take("greedy")
	if err := p.take(t.Context(), "greedy"); !errors.Is(err, ErrBusy) {
		t.Errorf("a third one that waits: %v", err)
	}
	p.give("greedy")
	if err := <-small; err != nil {
		t.Error(err)
	}
	for _, tenant := range []string{"b", "c", "small"} {
		p.give(tenant)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for p.fits("d") {
		if err := p.take(t.Context(), "d"); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.take(ctx, "d"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	p.close()
	if err := <-second; !errors.Is(err, ErrClosed) {
		t.Errorf("at the end: %v", err)
	}
	if err := p.take(t.Context(), "x"); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestBusyWorkers: one tenant's runs that wait do not keep another's out, and
// one that finds no place is told so.
func TestBusyWorkers(t *testing.T) {
	p, err := NewWorkers(context.Background(), Config{GuestDir: guestDir, CacheDir: testCache, Workers: 1, MaxRuns: 4, Args: []string{"isolate-worker"}, UIDBase: testUID})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	wait := js(`export default () => new Promise((r) => setTimeout(r, 1e6))`)
	ended := make(chan error, 4)
	for range cap(ended) {
		go func() {
			_, err := p.Run(context.Background(), wait, &fakeHost{})
			ended <- err
		}()
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, ErrBusy) {
			t.Errorf("error %v, want ErrBusy", err)
		}
	}
	r := js(trivial)
	r.Tenant = "bob"
	check(t, run1(t, p, r, nil), &fakeHost{}, want{value: "null"})
}

// TestOneTenantLeavesAWorker: the runs of one tenant are in all workers but one,
// where the next tenant's go.
func TestOneTenantLeavesAWorker(t *testing.T) {
	p := &workerPool{places: newPlaces(100)}
	for range 3 {
		p.workers = append(p.workers, &process{dead: make(chan struct{}), tenants: map[string]int{}})
	}
	used := func(tenant string) (n int) {
		for _, w := range p.workers {
			if w.tenants[tenant] > 0 {
				n++
			}
		}
		return n
	}
	var last *process
	for range 10 {
		w, err := p.pick(t.Context(), "greedy", nil, false)
		if err != nil {
			t.Fatal(err)
		}
		last = w
	}
	small, err := p.pick(t.Context(), "small", nil, false)
	if err != nil || used("greedy") != 2 || small.tenants["greedy"] != 0 {
		t.Errorf("greedy is in %d workers, small with %v, %v", used("greedy"), small.tenants, err)
	}
	close(last.dead)
	if w, err := p.pick(t.Context(), "greedy", nil, false); err != nil || w == last {
		t.Errorf("%v, %v", w, err)
	}
	p.release(small, "small")
	if used("small") != 0 || small.load != 0 {
		t.Errorf("%+v", small)
	}
}
