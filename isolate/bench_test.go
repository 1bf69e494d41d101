package isolate

import (
	"context"
	"sort"
	"testing"
	"time"
)

const trivial = `export default async function (input, env) { return input; }`

func benchRuns(b *testing.B, p Pool) {
	r := js(trivial)
	h := &fakeHost{}
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		res, err := p.Run(context.Background(), r, h)
		if err != nil || res.Status != StatusOK {
			b.Fatal(err, res)
		}
		took = append(took, time.Since(start))
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

func BenchmarkInProcess(b *testing.B) { benchRuns(b, newPool(b)) }

func BenchmarkWorker(b *testing.B) { benchRuns(b, newWorkers(b, 1)) }
