package isolate

import (
	"runtime"
	"sync"
	"testing"
)

// TestPatience: looking in vain gets rarer and rarer, and comes back.
func TestPatience(t *testing.T) {
	var p patience
	looked := 0
	for range 10_000 {
		if p.any() {
			looked++
			p.learn(false)
		}
	}
	if looked < 50 || looked > 100 {
		t.Errorf("looked %d times in vain", looked)
	}
	n := 0
	for ; n < 1000 && p.vain > 0; n++ {
		if p.any() {
			p.learn(true)
		}
	}
	if n == 0 || n > 200 || !p.any() {
		t.Errorf("took %d runs to be patient again: %+v", n, p)
	}
}

// TestSpawn: whatever waits or works, each function runs once, and one goroutine
// is kept at most.
func TestSpawn(t *testing.T) {
	w := &workerSide{runner: make(chan func())}
	before := runtime.NumGoroutine()
	ran := make([]int, 100)
	for range 10 {
		var group sync.WaitGroup
		all := make(chan struct{})
		for i := range ran {
			group.Add(1)
			w.spawn(func() {
				defer group.Done()
				if i%10 == 0 {
					<-all // they are under way together
				}
				ran[i]++
			})
		}
		close(all)
		group.Wait()
	}
	for i, n := range ran {
		if n != 10 {
			t.Errorf("function %d ran %d times", i, n)
		}
	}
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before+1 && w.waits.Load() })
	done := make(chan struct{})
	w.spawn(func() { close(done) })
	<-done
}
