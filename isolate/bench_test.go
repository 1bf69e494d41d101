package isolate

import (
	"context"
	"sort"
	"testing"
	"time"
)

const trivial = `export default async function (input, env) { return input; }`

func benchRuns(b *testing.B, p Pool, r *Request) {
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

func BenchmarkInProcess(b *testing.B) { benchRuns(b, newPool(b), js(trivial)) }

func BenchmarkWorker(b *testing.B) { benchRuns(b, newWorkers(b, 1), js(trivial)) }

func BenchmarkWorkerTypeScript(b *testing.B) {
	benchRuns(b, newWorkers(b, 1), ts("export default async function (input: unknown): Promise<unknown> { return input; }"))
}

// BenchmarkWorkers runs as many at once as there are cores.
func BenchmarkWorkers(b *testing.B) {
	p := newWorkers(b, 0)
	r := js(trivial)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if res, err := p.Run(context.Background(), r, &fakeHost{}); err != nil || res.Status != StatusOK {
				b.Error(err, res)
			}
		}
	})
}

// BenchmarkFresh takes a new instance for each call, where the others reset
// one.
func BenchmarkFresh(b *testing.B) {
	e, err := loadEngine(context.Background(), guestDir, workersCache)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	job := &jobMessage{Request: js(trivial)}
	for b.Loop() {
		vm, err := e.New(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if res := execute(context.Background(), vm, job, &fakeHost{}); res.Status != StatusOK {
			b.Fatal(res)
		}
		e.Discard(vm)
	}
}

// BenchmarkReset is a call in a VM that is reset afterwards, with that.
func BenchmarkReset(b *testing.B) {
	e, err := loadEngine(context.Background(), guestDir, workersCache)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	job := &jobMessage{Request: js(trivial)}
	for b.Loop() {
		vm, err := e.Get(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if res := execute(context.Background(), vm, job, &fakeHost{}); res.Status != StatusOK {
			b.Fatal(res)
		}
		e.Put(vm)
	}
}
