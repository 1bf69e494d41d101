package jail

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

// staticTrue builds the program that the ratios of the benchmarks refer to.
func staticTrue(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	src := filepath.Join(dir, "true.c")
	if err := os.WriteFile(src, []byte("int main(void){return 0;}\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	bin := filepath.Join(dir, "true")
	if out, err := exec.Command("gcc", "-O2", "-static", "-o", bin, src).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return bin
}

// report tells the median and the 99th percentile, and the median as a ratio to
// fork+exec of the same program outside, taken in turn in the same run.
func report(b *testing.B, times, floor []time.Duration) {
	slices.Sort(times)
	slices.Sort(floor)
	p50, p99 := times[len(times)/2], times[len(times)*99/100]
	base := floor[len(floor)/2]
	b.ReportMetric(float64(p50.Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)/10].Microseconds()), "p10-µs")
	b.ReportMetric(float64(p99.Microseconds()), "p99-µs")
	b.ReportMetric(float64(base.Microseconds()), "floor-µs")
	b.ReportMetric(float64(p50)/float64(base), "x-floor")
	b.ReportMetric(0, "ns/op")
}

func forkExec(b *testing.B, bin string) time.Duration {
	begin := time.Now()
	if err := exec.Command(bin).Run(); err != nil {
		b.Fatal(err)
	}
	return time.Since(begin)
}

// BenchmarkCreate goes from nothing to the exit of the first command; the
// teardown is in the loop but not in the time.
func BenchmarkCreate(b *testing.B) {
	m := testManager(b)
	bin := staticTrue(b)
	var times, floor, destroy []time.Duration
	for i := 0; b.Loop(); i++ {
		floor = append(floor, forkExec(b, bin))
		begin := time.Now()
		j, err := m.Create(b.Context(), Spec{Tenant: fmt.Sprintf("t%d", i), Ephemeral: true})
		if err != nil {
			b.Fatal(err)
		}
		trueIn(b, j, "/usr/bin/true")
		times = append(times, time.Since(begin))
		begin = time.Now()
		if err := j.Destroy(context.Background(), "test"); err != nil {
			b.Fatal(err)
		}
		destroy = append(destroy, time.Since(begin))
	}
	report(b, times, floor)
	slices.Sort(destroy)
	b.ReportMetric(float64(destroy[len(destroy)/2].Microseconds()), "destroy-p50-µs")
}

func trueIn(b *testing.B, j *Jail, path string) {
	p, err := j.Exec(b.Context(), ExecSpec{Argv: []string{path}})
	if err != nil {
		b.Fatal(err)
	}
	exit, err := p.Wait(b.Context())
	if err != nil || exit.Code != 0 {
		b.Fatalf("%+v %v", exit, err)
	}
}

// BenchmarkExec runs a command in a jail that is there.
func BenchmarkExec(b *testing.B) {
	m := testManager(b)
	bin := staticTrue(b)
	j, err := m.Create(b.Context(), Spec{Tenant: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := j.WriteFile(b.Context(), "/workspace/true", mustOpen(b, bin), 0o755, 1<<24); err != nil {
		b.Fatal(err)
	}
	trueIn(b, j, "/workspace/true")
	var times, floor []time.Duration
	for b.Loop() {
		floor = append(floor, forkExec(b, bin))
		begin := time.Now()
		trueIn(b, j, "/workspace/true")
		times = append(times, time.Since(begin))
	}
	report(b, times, floor)
}

func mustOpen(b *testing.B, path string) *os.File {
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return f
}

// BenchmarkManyExecs: ten thousand commands in one jail, and what they leave: in
// this process, and in sandbox-init. Run it with -benchtime 1x.
func BenchmarkManyExecs(b *testing.B) {
	m := testManager(b)
	j := testJail(b, m, "alice")
	for range maxEnded + 1 {
		sh(b, j, "true")
	}
	for b.Loop() {
		before, inside, heap := count(b, m), initState(b, j), heapInUse()
		for range 10_000 {
			if o := run(b, j, ExecSpec{Argv: []string{"/bin/true"}}); o.exit.Code != 0 {
				b.Fatalf("%+v", o)
			}
		}
		settled(b, m, before)
		after := initState(b, j)
		b.ReportMetric(float64(after.files-inside.files), "init-files")
		b.ReportMetric(float64(after.threads-inside.threads), "init-threads")
		b.ReportMetric(float64(after.memory-inside.memory)/1024, "init-KiB")
		b.ReportMetric((float64(heapInUse())-float64(heap))/1024, "own-heap-KiB")
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
