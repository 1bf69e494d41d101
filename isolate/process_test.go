package isolate

import "testing"

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
