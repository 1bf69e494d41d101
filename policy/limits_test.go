package policy

import "testing"

func TestAtMost(t *testing.T) {
	l := Limits{Wall: 5e9, Memory: 64 << 20, Calls: 10}
	got := l.AtMost(Limits{Wall: 1e9, Memory: 128 << 20, CPUs: 2, Requests: 3})
	if want := (Limits{Wall: 1e9, Memory: 64 << 20, Calls: 10}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
