//go:build !race

// The race detector takes memory and time of its own: `make test-measure` runs
// what is measured here.

package isolate

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"sandboxd/isolate/cpython"
	"sandboxd/isolate/quickjs"
	"sandboxd/isolate/wasmvm"
)

// procKiB adds up a field of a file of /proc, in KiB.
func procKiB(t *testing.T, path, field string) (n int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			var v int
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatal(err)
			}
			n += v
		}
	}
	return n
}

// held is what this process holds in KiB: Go's heap in use, what is private and
// not Go's heap, and page tables.
func held(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	m := new(runtime.MemStats)
	runtime.ReadMemStats(m)
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	// The kernel puts mappings elsewhere.
	arena := uint64(uintptr(unsafe.Pointer(m))) >> 36
	private, inHeap := 0, false
	for line := range strings.Lines(string(b)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inHeap = from>>36 == arena
		}
		if rest, ok := strings.CutPrefix(line, "Private_Dirty:"); ok && !inHeap {
			var v int
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatal(err)
			}
			private += v
		}
	}
	return private + int(m.HeapInuse>>10) + procKiB(t, "/proc/self/status", "VmPTE")
}

// A cost is what an idle VM may hold, in KiB: some seconds after its run, when it
// is still ready for the next one, and when nobody has wanted it for long.
type cost struct{ ready, trimmed int }

// alone runs the test again in a process of its own and says whether that is the
// one that asks: where other tests ran, what they left goes while this one measures.
func alone(t *testing.T) bool {
	t.Helper()
	const mark = "SANDBOXD_TEST_ALONE"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if t.Logf("by itself:\n%s", out); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("by itself: %v", err)
	}
	return false
}

// TestIdleCost measures VMs that were used and are kept for the next run.
func TestIdleCost(t *testing.T) {
	if !alone(t) {
		return
	}
	const vms, idleFor = 50, 10 * time.Second // ready for that long, from a tenth of it on without its stacks
	t.Run("JavaScript", func(t *testing.T) {
		guest, err := loadJS(guestDir)
		if err != nil {
			t.Fatal(err)
		}
		o := engineOptions(guest, workersCache)
		o.Idle, o.IdleFor = vms, idleFor
		e, err := quickjs.New(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		run := func(vm *quickjs.VM) *Result {
			return execute(context.Background(), vm, &jobMessage{Request: plainRequest}, &fakeHost{})
		}
		idleCost(t, vms, cost{300, 60}, run, e.Get, e.Put, e.Discard, func() wasmvm.PoolStats { return e.Stats().PoolStats })
	})
	t.Run("Python", func(t *testing.T) {
		snapshot, err := bootPython(context.Background(), guestDir, workersCache)
		if err != nil {
			t.Fatal(err)
		}
		defer snapshot.Close()
		o, err := pythonOptions(snapshot, workersCache)
		if err != nil {
			t.Fatal(err)
		}
		o.Idle, o.IdleFor = vms, idleFor
		e, err := cpython.New(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		run := func(vm *cpython.VM) *Result {
			return executePython(context.Background(), vm, &jobMessage{Request: pythonPlain}, &fakeHost{})
		}
		idleCost(t, vms, cost{500, 300}, run, e.Get, e.Put, e.Discard, func() wasmvm.PoolStats { return e.Stats().PoolStats })
	})
}

func idleCost[V any](t *testing.T, n int, most cost, run func(V) *Result, get func(context.Context) (V, error), put, discard func(V), stats func() wasmvm.PoolStats) {
	t.Helper()
	take := func() (out []V) {
		for range n {
			vm, err := get(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, vm)
		}
		return out
	}
	use := func() (before wasmvm.PoolStats) {
		for _, vm := range take() {
			if res := run(vm); res.Status != StatusOK {
				t.Fatal(res.Error)
			}
			before = stats()
			put(vm)
		}
		return before
	}
	before := use()
	waitFor(t, func() bool { return stats().Cooled >= before.Cooled+uint64(n) })
	ready := held(t)
	if s := stats(); s.Trims != before.Trims || s.Idle != n {
		t.Fatalf("too slow to see VMs that are ready: %+v", s)
	}
	end := time.Now().Add(time.Minute)
	for stats().Trims < before.Trims+uint64(n) && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	trimmed := held(t)
	for _, vm := range take() {
		discard(vm)
	}
	none := held(t)
	got := cost{(ready - none) / n, (trimmed - none) / n}
	t.Logf("an idle VM holds %d KiB while it is ready, %d later", got.ready, got.trimmed)
	if got.ready > most.ready || got.trimmed > most.trimmed {
		t.Errorf("an idle VM holds %+v KiB, more than %+v", got, most)
	}
}

// TestMemoryComesBack: ten thousand runs of a thousand tenants, among them such
// as are killed, and what the workers and this process hold is what they held
// before.
func TestMemoryComesBack(t *testing.T) {
	p := newWorkers(t, 2)
	const runs = 10_000
	resident := func() (out []int) {
		debug.FreeOSMemory() // what else the tests have left here
		out = append(out, procKiB(t, "/proc/self/status", "VmRSS"))
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, w := range p.workers {
			out = append(out, procKiB(t, fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid), "VmRSS"))
		}
		return out
	}
	manyRuns(t, p, 40)
	time.Sleep(quietTime + time.Second)
	start := resident()
	manyRuns(t, p, runs)
	peak := resident()
	var now []int
	for end := time.Now().Add(5 * quietTime); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if now = resident(); within(now, start) {
			break
		}
	}
	t.Logf("resident KiB of this process and the workers: %d before, %d after %d runs, %d later", start, peak, runs, now)
	if !within(now, start) {
		t.Error("the memory does not come back to within 20 percent")
	}
}

func within(now, start []int) bool {
	for i := range now {
		if i >= len(start) || now[i] > start[i]*12/10 {
			return false
		}
	}
	return len(now) == len(start)
}

// manyRuns makes n runs of a thousand tenants, eight at a time.
func manyRuns(t *testing.T, p Pool, n int) {
	t.Helper()
	plain, py := js(trivial), python(trivialPython)
	heavy := js(`export default () => { const a = []; for (let i = 0; i < 5000; i++) a.push({i, s: 'x'.repeat(i % 50)}); return a.length; }`)
	cpu := js(`export default () => { for (;;); }`)
	cpu.Limits.CPU = 5 * time.Millisecond
	memory := js(`export default () => { const a = []; for (;;) a.push(new Uint8Array(100000).fill(1)); }`)
	memory.Limits.Memory = 16 << 20
	wall := js(`export default () => new Promise(() => { setTimeout(() => {}, 1e6) })`)
	wall.Limits.Wall = 20 * time.Millisecond
	var next atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				r, kind := plain, ""
				switch {
				case i%100 == 7:
					r, kind = cpu, "cpu"
				case i%100 == 17:
					r, kind = memory, "memory"
				case i%100 == 27:
					r, kind = wall, "wall"
				case i%20 == 3:
					r = py
				case i%20 == 5:
					r = heavy
				}
				mine := *r
				mine.Tenant = fmt.Sprintf("tenant-%d", i%1000)
				res, err := p.Run(context.Background(), &mine, &fakeHost{})
				if err != nil {
					t.Error(err)
					return
				}
				if kind != "" && (res.Error == nil || res.Error.Limit != kind) {
					t.Errorf("%s: %+v", kind, res.Error)
				}
			}
		})
	}
	group.Wait()
}
