package isolate

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"
)

// collections is how many are reported at once.
const collections = 10

// collectAlways, in a worker of a test, collects garbage all the time and reports
// on standard error how long it waited for others to stop, at p90, in ns.
func collectAlways() map[string]string {
	go func() {
		sample := []metrics.Sample{{Name: "/sched/pauses/stopping/gc:seconds"}}
		read := func() *metrics.Float64Histogram {
			metrics.Read(sample)
			h := *sample[0].Value.Float64Histogram()
			h.Counts = slices.Clone(h.Counts)
			return &h
		}
		for {
			before := read()
			for range collections {
				runtime.GC()
				time.Sleep(5 * time.Millisecond)
			}
			fmt.Fprintf(os.Stderr, "pause=%d\n", p90(before, read()))
		}
	}()
	return nil
}

// p90 of what a histogram counted since another one, in ns.
func p90(before, after *metrics.Float64Histogram) int64 {
	var n, sum uint64
	for i, c := range after.Counts {
		n += c - before.Counts[i]
	}
	for i, c := range after.Counts {
		if sum += c - before.Counts[i]; n > 0 && sum*10 >= n*9 {
			if most := after.Buckets[i+1]; !math.IsInf(most, 1) {
				return int64(most * 1e9)
			}
			break
		}
	}
	return math.MaxInt64
}
