package isolate

import (
	"context"
	"sync"
	"testing"
	"time"
)

// TestTurns: the next turn is that of the tenant that used the least, and of its
// runs the one that did.
func TestTurns(t *testing.T) {
	turns := newTurns()
	if !turns.take(t.Context(), shortRuns, "a", 0) {
		t.Fatal("nobody had a turn, and there was none")
	}
	var order string
	var group sync.WaitGroup
	enter := func(name, tenant string, used time.Duration) {
		turns.mu.Lock()
		before := len(turns.lanes[shortRuns].queue)
		turns.mu.Unlock()
		group.Go(func() {
			turns.take(context.Background(), shortRuns, tenant, used)
			order += name // one at a time has a turn
			turns.give(shortRuns, tenant, time.Second)
		})
		waitFor(t, func() bool {
			turns.mu.Lock()
			defer turns.mu.Unlock()
			return len(turns.lanes[shortRuns].queue) > before
		})
	}
	enter("1", "a", 5)
	enter("2", "a", 3)
	enter("3", "b", 7)
	enter("4", "c", 9)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if turns.take(gone, shortRuns, "d", 0) {
		t.Error("a run that has ended got a turn")
	}
	turns.give(shortRuns, "a", time.Millisecond)
	group.Wait()
	if order != "3421" {
		t.Errorf("order %s", order)
	}
	if turns.lanes[shortRuns].taken || turns.wanted(shortRuns) {
		t.Errorf("%+v", turns)
	}
}

func TestTurnsForget(t *testing.T) {
	turns := newTurns()
	for i := range 10 * maxSpent {
		tenant := string(rune('a' + i%26))
		tenant += time.Duration(i).String()
		turns.take(t.Context(), shortRuns, tenant, 0)
		turns.give(shortRuns, tenant, time.Second)
	}
	if n := len(turns.spent); n > maxSpent {
		t.Errorf("%d tenants are remembered", n)
	}
}

// TestFairWorker: beside runs that never rest, in the same worker, a small call
// of another tenant waits for a slice of one of them, not of all.
func TestFairWorker(t *testing.T) {
	p := newWorkers(t, 1)
	r := js(trivial)
	r.Tenant = "bob"
	calls := func(n int) (took []time.Duration) {
		for range n {
			start := time.Now()
			check(t, run1(t, p, r, nil), &fakeHost{}, want{value: "null"})
			took = append(took, time.Since(start))
		}
		return took
	}
	mean := func() time.Duration {
		var sum time.Duration
		took := calls(30)
		for _, d := range took {
			sum += d
		}
		return sum / time.Duration(len(took))
	}
	calls(20)
	alone := mean()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	const spinners = 38
	for i := range spinners {
		spin := js(`export default () => { while (true) {} }`)
		spin.Limits.CPU, spin.Limits.Wall = time.Minute, time.Minute
		if i >= 22 {
			spin.Tenant = "carol"
		}
		group.Go(func() {
			if _, err := p.Run(ctx, spin, &fakeHost{}); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { return p.Stats().Running == spinners })
	beside := mean()
	cancel()
	group.Wait()
	t.Logf("mean of a small call: %v alone, %v beside %d loops", alone, beside, spinners)
	// As goroutines they would get a slice each before it. What other processes
	// take, they take in both.
	if beside > spinners/2*max(slice, alone) {
		t.Errorf("a small call takes %v beside %d loops, and %v alone", beside, spinners, alone)
	}
}

// TestLanes: a long run takes no turn from short ones, and the process has more
// processors while there is one.
func TestLanes(t *testing.T) {
	turns := newTurns()
	var set []int
	turns.processors = func(n int) { set = append(set, n) }
	ourTurns = turns
	defer func() { ourTurns = nil }()
	c := cpuTime{ctx: t.Context(), tenant: "a"}
	c.start()
	c.large()
	if c.lane != longRuns || !c.turn {
		t.Errorf("it moves much, and is not long: %+v", c)
	}
	c.large()
	// Whether short or long, each waits for its own kind only.
	if !turns.take(t.Context(), shortRuns, "b", 0) {
		t.Error("a short run waits for a long one")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if turns.take(gone, longRuns, "b", 0) {
		t.Error("two long runs compute at once")
	}
	other := cpuTime{ctx: gone, tenant: "b", lane: longRuns}
	turns.lengthen()
	other.end()
	c.end()
	if turns.long != 0 || len(set) != 1 || set[0] != longProcessors || turns.lanes[longRuns].taken {
		t.Errorf("after the end: %d long, processors %v", turns.long, set)
	}
	turns.lengthen() // at once again: they are still there
	turns.shorten()
	if len(set) != 1 {
		t.Errorf("processors %v", set)
	}
	turns.narrowNow()
	if len(set) != 2 || set[1] != 1 {
		t.Errorf("when no run has been long for a while: processors %v", set)
	}
	turns.lengthen()
	turns.narrowNow() // late: there is a long one meanwhile
	if len(set) != 3 || set[2] != longProcessors {
		t.Errorf("processors %v", set)
	}
}
