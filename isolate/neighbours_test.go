//go:build !race

package isolate

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// crowd is code of others, by the way in which it keeps a worker busy: compiled
// code, built-in functions, what is moved between guest and host in one go.
var crowd = []struct {
	name string
	req  func(string) *Request
	src  string
}{
	{"loop", js, `export default () => { for (;;); }`},
	{"built-ins", js, `export default () => { const a = new Uint8Array(20e6), b = new Array(1e5).fill('abc'); for (;;) { a.fill(1); a.copyWithin(1, 0); JSON.stringify(b); String(7n ** 30000n) } }`},
	{"long text", js, `export default () => { const s = 'x'.repeat(20e6), e = new TextEncoder, d = new TextDecoder('utf-16le'); for (;;) d.decode(e.encode(s)) }`},
	{"many short ones", js, `export default () => { const s = 'x'.repeat(5e6), e = new TextEncoder; e.encode(s) }`},
	{"Python loop", python, "def main(i, env):\n  while True: pass\n"},
	{"Python files", python, "def main(i, env):\n  b=bytes(20000000)\n  while True: open('/tmp/x','wb').write(b)\n"},
}

// besides calls f while n tenants run code, again and again, and returns when
// none of it runs any more.
func besides(t *testing.T, p Pool, n int, req func(string) *Request, src string, f func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	began := make(chan struct{}, n)
	for i := range n {
		group.Go(func() {
			for ctx.Err() == nil {
				r := req(src)
				r.Tenant = fmt.Sprintf("greedy-%d", i)
				r.Limits.Wall, r.Limits.CPU, r.Limits.Memory = 10*time.Second, 300*time.Millisecond, 256<<20
				select {
				case began <- struct{}{}:
				default:
				}
				// It ends by a limit or with ctx.
				if _, err := p.Run(ctx, r, &fakeHost{}); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range n {
		<-began
	}
	f()
	stop()
	group.Wait()
}

// neighbourly is how many times its usual p99 a small call may take at p99 beside
// the code of others.
const neighbourly = 10

// usually is the least that counts as a small call's usual p99: what it is at the
// daemon's socket on a quiet machine. In a pool alone it is a fifth of that, which
// is less than the kernel's own scheduling is held to.
const usually = time.Millisecond

// strictly is the largest crowd beside which ten times is held on an idle machine
// every time. Beside four and eight it is met most of the time, and not always on
// two processors (up to 100 times was seen): those are held to the ceiling, and
// how far off they are is logged.
const strictly = 2

// ceiling is the p99 that no machine excuses. Before runs had lanes it was 150 ms.
const ceiling = 100 * usually

// excusable is how much of the machine's processors others may have had, in
// percent, before a measurement tells of them as well.
const excusable = 10

// ticks are the processor time of all and that of this process and its workers,
// in the kernel's ticks.
func ticks(t *testing.T, p *workerPool) (all, ours int) {
	t.Helper()
	fields := func(path string, from, to int) (n int) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), "\n")
		for _, f := range strings.Fields(line)[from:to] {
			v, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			n += v
		}
		return n
	}
	all = fields("/proc/stat", 1, 4) + fields("/proc/stat", 6, 9) // not idle, not waiting
	ours = fields("/proc/self/stat", 11, 13)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		ours += fields(fmt.Sprintf("/proc/%d/stat", w.cmd.Process.Pid), 11, 13)
	}
	return all, ours
}

// TestNeighbours: how much code delays a small call of another tenant; ten times
// what it takes at most alone is the goal. Both are measured one after the other, since what
// else the machine does makes both longer; and again if the second was: code that
// delays its neighbours does it each time. Where other programs had processors
// each time, the ceiling alone holds.
func TestNeighbours(t *testing.T) {
	p := newWorkers(t, 0)
	small := js(trivial)
	small.Tenant = "bob"
	p99 := func() time.Duration {
		var took []time.Duration
		for range 200 {
			began := time.Now()
			check(t, run1(t, p, small, nil), &fakeHost{}, want{value: "null"})
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[197]
	}
	p99()
	for _, c := range crowd {
		for _, n := range []int{2, 4, 8} {
			t.Run(fmt.Sprintf("%d × %s", n, c.name), func(t *testing.T) {
				var ratios []string
				least, busy := time.Hour, true
				for range 5 {
					alone := p99()
					var beside time.Duration
					began := time.Now()
					all, ours := ticks(t, p)
					besides(t, p, n, c.req, c.src, func() { beside = p99() })
					allNow, oursNow := ticks(t, p)
					// A tick is 10 ms.
					others := float64(allNow-all-(oursNow-ours)) / time.Since(began).Seconds() / float64(runtime.NumCPU())
					busy = busy && others > excusable
					ratio := float64(beside) / float64(max(alone, usually))
					ratios = append(ratios, fmt.Sprintf("%.1f (%v, %v, others %.0f %%)", ratio, alone, beside, others))
					least = min(least, beside)
					if ratio <= neighbourly {
						t.Logf("p99: %.2f times alone, %v", ratio, beside)
						return
					}
				}
				said := fmt.Sprintf("a small call's p99 beside it, as a multiple of alone, where %d is allowed: %s", neighbourly, strings.Join(ratios, ", "))
				if n <= strictly && !busy || least > ceiling {
					t.Fatal(said)
				}
				t.Log("not met: " + said)
			})
		}
	}
}

// TestCollector: the garbage collector of a worker does not wait beyond 5 ms for
// the code of a run. A worker collects all the time here, and says how long it
// waited until all stood still.
func TestCollector(t *testing.T) {
	const most = 5 * time.Millisecond
	for _, c := range crowd {
		t.Run(c.name, func(t *testing.T) {
			var all []string
			for range 5 {
				said := &pauseLog{t: t, seen: make(chan time.Duration, 100)}
				p, err := NewWorkers(t.Context(), Config{GuestDir: guestDir, CacheDir: testCache, Workers: 1, Args: []string{"isolate-worker-collects"}, UIDBase: testUID, Log: slog.New(slog.NewTextHandler(said, nil))})
				if err != nil {
					t.Fatal(err)
				}
				if err := p.(*workerPool).python.wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				var pause time.Duration
				besides(t, p, 2, c.req, c.src, func() {
					for len(said.seen) > 0 {
						<-said.seen // from before
					}
					<-said.seen // these are from before in part
					<-said.seen
					pause = <-said.seen
				})
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				if pause <= most {
					t.Logf("beside %s the collector waited %v", c.name, pause)
					return
				}
				all = append(all, pause.String())
			}
			t.Errorf("the collector waited at p90 %s, where %v is the most", strings.Join(all, ", "), most)
		})
	}
}

// A pauseLog finds the reports of collectAlways in a pool's log.
type pauseLog struct {
	t    *testing.T
	seen chan time.Duration
}

func (l *pauseLog) Write(b []byte) (int, error) {
	if i := bytes.Index(b, []byte("pause=")); i >= 0 {
		var ns int64
		_, err := fmt.Sscanf(string(b[i:]), "pause=%d", &ns)
		// The others are compilers.
		if err == nil && bytes.Contains(b, []byte(" worker=0 ")) {
			select {
			case l.seen <- time.Duration(ns):
			default:
			}
		}
		return len(b), nil
	}
	l.t.Logf("%s", b)
	return len(b), nil
}
