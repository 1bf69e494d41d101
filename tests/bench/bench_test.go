package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var times []time.Duration
	for i := 100; i >= 1; i-- {
		times = append(times, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(times, q); got != want {
			t.Errorf("quantile %v of 1…100 is %d, want %d", q, got, want)
		}
	}
	if got := quantile([]time.Duration{7}, 0.99); got != 7 {
		t.Errorf("of one value: %d", got)
	}
}

// TestMeasureAlternates: a row and its floor see the same machine.
func TestMeasureAlternates(t *testing.T) {
	var order string
	rows, err := measure(t.Context(), 2, []step{
		{"floor", func(context.Context) error { order += "f"; return nil }},
		{"thing", func(context.Context) error { order += "t"; time.Sleep(time.Millisecond); return nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(order) != 2*(warmUp+2) || order[:4] != "ftft" {
		t.Errorf("order %q", order)
	}
	if rows[0].Floor != "" || rows[1].Floor != "floor" || rows[1].Ratio50 <= 1 || rows[1].Rounds != 2 {
		t.Errorf("rows %+v", rows)
	}
	failed := errors.New("no")
	if _, err := measure(t.Context(), 2, []step{{"x", func(context.Context) error { return failed }}}); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
}

func TestWaits(t *testing.T) {
	got := waits([]byte("=== RUN   TestCollector\n    x_test.go:1: beside long text the collector waited 2.5ms\n    x_test.go:2: something else\nPASS\n"))
	if len(got) != 1 || got[0].Name != "collector's wait beside long text" || got[0].Value != 2.5 {
		t.Errorf("%+v", got)
	}
}

func TestPairs(t *testing.T) {
	got := pairs([]byte(`goos: linux
BenchmarkLoops/tight/plain-2   	       5	  50000000 ns/op
BenchmarkLoops/tight/metered-2 	       5	  60000000 ns/op	 0.16 ns/unit
BenchmarkPythonMetering/metered-16  	       6	 110000000 ns/op
BenchmarkPythonMetering/unmetered-16	       6	 100000000 ns/op
BenchmarkAlone/metered-2	       6	 100000000 ns/op
PASS
`))
	if len(got) != 2 || got[0].Name != "metering: Loops/tight" || got[0].Value != 1.2 || got[1].Name != "metering: PythonMetering" || got[1].Value != 1.1 {
		t.Errorf("%+v", got)
	}
}
