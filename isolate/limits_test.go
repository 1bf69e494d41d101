package isolate

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"
)

// hostile is code that does not end by itself or wants too much, and the limit
// that must end it.
var hostile = map[string]struct {
	src, limit string
}{
	"loop":             {`export default () => { while (true) {} }`, "cpu"},
	"loop at the top":  {`while (true) {}; export default () => 1`, "cpu"},
	"catching loop":    {`export default () => { while (true) { try { while (true) {} } catch {} finally { continue } } }`, "cpu"},
	"microtasks":       {`export default async () => { while (true) await null }`, "cpu"},
	"generator":        {`export default () => { function* g() { while (true) yield 1 } for (const x of g()) {} }`, "cpu"},
	"calls, no loop":   {`export default () => { const f = (n) => n === 0 ? 1 : f(n - 1) + f(n - 1); return f(60) }`, "cpu"},
	"regexp":           {`export default () => /^(a+)+$/.test("a".repeat(40) + "b")`, "cpu"},
	"sort":             {`export default () => { const a = Array.from({length: 1e5}, (_, i) => -i); while (true) a.slice().sort((x, y) => y - x) }`, "cpu"},
	"bigint":           {`export default () => { let a = 3n; while (true) a = a * a % (1n << 200000n) }`, "cpu"},
	"bigint power":     {`export default () => String(7n ** 3000000n).length`, "cpu or thrown"},
	"bigint grows":     {`export default () => { let a = 3n; while (true) a = a * a }`, "memory or thrown or cpu"},
	"string grows":     {`export default () => { let s = "x"; while (true) s += s + "y" }`, "memory or thrown"},
	"array":            {`export default () => { const a = []; while (true) a.push({}) }`, "memory"},
	"typed array":      {`export default () => new Uint8Array(1e9).length`, "memory"},
	"many buffers":     {`export default () => { const a = []; while (true) a.push(new ArrayBuffer(1e6)) }`, "memory"},
	"catches memory":   {`export default () => { const a = []; while (true) { try { while (true) a.push(new ArrayBuffer(1e6)) } catch {} } }`, "memory"},
	"pending promises": {`export default () => { const a = []; for (let i = 0; i < 1e6; i++) a.push(new Promise((r) => setTimeout(r, 1e6))); return Promise.all(a) }`, "timers or cpu"},
	"promises":         {`export default () => { const a = []; for (let i = 0; i < 1e6; i++) a.push(new Promise(() => {})); return Promise.all(a) }`, "memory or cpu"},
	"join":             {`export default () => new Array(1e8) + ""`, "memory or cpu"},
	"repeat":           {`export default () => "x".repeat(5e8)`, "memory"},
	"json":             {`export default () => { let o = {}; for (let i = 0; i < 18; i++) o = {a: o, b: o}; return JSON.stringify(JSON.stringify(o)).length * JSON.stringify([o, o, o, o, o, o, o, o, o, o]).length }`, "memory or cpu or ok"},
	"decoding":         {`export default () => { const b = new Uint8Array(2e6).fill(0x81); while (true) for (const e of ["utf-8", "windows-1252", "gb18030"]) new TextDecoder(e).decode(b) }`, "memory or cpu"},
	"digests":          {`export default async () => { const b = new Uint8Array(2e6), k = await crypto.subtle.importKey("raw", b, {name: "HMAC", hash: "SHA-512"}, false, ["sign"]); while (true) await crypto.subtle.sign("HMAC", k, b) }`, "cpu"},
	"wait":             {`export default () => new Promise((r) => setTimeout(r, 1e6))`, "wall"},
	"hanging call":     {`export default (i, env) => env.X.hang()`, "wall"},
	"short timers":     {`export default async () => { while (true) await new Promise((r) => setTimeout(r, 1)) }`, "wall or cpu"},
	"output":           {`export default () => { while (true) console.log("x".repeat(1000)) }`, "output"},
	"empty output":     {`export default () => { while (true) console.log("") }`, "output or lines or cpu"},
	"result":           {`export default () => "x".repeat(200000)`, "result"},
	"host calls":       {`export default async (i, env) => { while (true) await env.X.now() }`, "calls"},
	"calls at once":    {`export default (i, env) => { while (true) env.X.now() }`, "calls"},
	"typescript":       {`export default (): never => { while (true) {} }`, "cpu"},
}

func limitHost() *fakeHost {
	return &fakeHost{call: func(ctx context.Context, c Call) (json.RawMessage, error) {
		if c.Method == "hang" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return json.RawMessage("1"), nil
	}}
}

func testLimits1(t *testing.T, p Pool) {
	for name, c := range hostile {
		t.Run(name, func(t *testing.T) {
			r := js(c.src)
			if name == "typescript" {
				r = ts(c.src)
			}
			r.Bindings = []Binding{{Name: "X", Methods: []string{"now", "hang"}}}
			// A fifth of a second of work takes a machine with twenty others on it
			// some seconds: only what waits is to meet the wall.
			wall := time.Minute
			if strings.Contains(c.limit, "wall") {
				wall = 2 * time.Second
			}
			r.Limits = Limits{Wall: wall, CPU: 200 * time.Millisecond, Memory: 32 << 20,
				Output: 100_000, Result: 100_000, Calls: 100, Requests: 1, Concurrency: 8}
			if strings.Contains(c.limit, "wall") {
				r.Limits.Wall = 600 * time.Millisecond
			}
			if strings.Contains(c.limit, "memory") {
				r.Limits.CPU = time.Second
			}
			h := limitHost()
			start := time.Now()
			res := run1(t, p, r, h)
			took := time.Since(start)
			switch {
			case res.Status == StatusKilled && res.Error.Kind == KindLimit && strings.Contains(c.limit, res.Error.Limit):
				if res.Error.Used == "" || res.Error.Allowed == "" {
					t.Errorf("no numbers: %+v", res.Error)
				}
			case res.Status == StatusError && res.Error.Kind == KindThrown && strings.Contains(c.limit, "thrown"):
			case res.Status == StatusOK && strings.Contains(c.limit, "ok"):
			default:
				t.Fatalf("status %s after %v, error %+v; want limit %s", res.Status, took, res.Error, c.limit)
			}
			// Another process may have the cores: what is promised of a quiet
			// machine is measured by the benchmark.
			slack := 100*time.Millisecond + 4*extra
			if took > r.Limits.Wall+slack {
				t.Errorf("took %v, wall limit %v", took, r.Limits.Wall)
			}
			if res.Usage.CPU > r.Limits.CPU+slack {
				t.Errorf("worked %v, limit %v", res.Usage.CPU, r.Limits.CPU)
			}
		})
	}
}

// extra is what the race detector and a busy machine cost.
const extra = 100 * time.Millisecond

func TestLimitsInProcess(t *testing.T) { testLimits1(t, newPool(t)) }

func TestLimitsWorkers(t *testing.T) {
	p := newWorkers(t, 1)
	// Where Python had to be made, the worker is replaced by one that has it.
	check(t, run1(t, p, python("def main(i, env):\n  return 1"), nil), &fakeHost{}, want{value: "1"})
	first := p.workers[0]
	testLimits1(t, p)
	if p.workers[0] != first {
		t.Error("the worker did not live through it")
	}
}

// TestCPUStopsInCalls shows that waiting for the host is not computing.
func TestCPUStopsInCalls(t *testing.T) {
	p := newPool(t)
	h := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) {
		time.Sleep(150 * time.Millisecond)
		return json.RawMessage("1"), nil
	}}
	r := js(`export default (i, env) => env.X.sleep()`)
	r.Bindings = []Binding{{Name: "X", Methods: []string{"sleep"}}}
	r.Limits.CPU = 100 * time.Millisecond
	res := run1(t, p, r, h)
	check(t, res, h, want{value: "1"})
	if res.Usage.Wall < 150*time.Millisecond || res.Usage.CPU > 100*time.Millisecond {
		t.Errorf("usage %+v", res.Usage)
	}
}

func TestCancel(t *testing.T) {
	for name, p := range map[string]Pool{"in process": newPool(t), "workers": newWorkers(t, 1)} {
		for what, src := range map[string]string{"computing": `export default () => { while (true) {} }`, "waiting": `export default () => new Promise((r) => setTimeout(r, 1e6))`, "calling": `export default (i, env) => env.X.hang()`} {
			t.Run(name+" "+what, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				stop := time.AfterFunc(30*time.Millisecond, cancel)
				defer stop.Stop()
				r := js(src)
				r.Bindings = []Binding{{Name: "X", Methods: []string{"hang"}}}
				start := time.Now()
				res, err := p.Run(ctx, r, limitHost())
				if err != nil {
					t.Fatal(err)
				}
				if res.Status != StatusKilled || res.Error.Kind != KindCanceled || time.Since(start) > time.Second {
					t.Errorf("%+v %v after %v", res, res.Error, time.Since(start))
				}
				want := PhaseStarted
				if what == "calling" {
					want = PhaseEffectsPossible
				}
				if res.Phase != want {
					t.Errorf("phase %s, want %s", res.Phase, want)
				}
			})
		}
	}
}

// TestFair runs code that never rests beside trivial code, and looks whether
// that and the garbage collector still come to their turn.
func TestFair(t *testing.T) {
	p := newPool(t)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	spin := js(`export default () => { while (true) {} }`)
	spin.Limits.CPU, spin.Limits.Wall = time.Minute, time.Minute
	for range 4 {
		group.Go(func() {
			if _, err := p.Run(ctx, spin, &fakeHost{}); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { return p.Stats().Running == 4 })
	var slowest time.Duration
	pauses := gcPauses()
	for range 20 {
		start := time.Now()
		check(t, run1(t, p, js(trivial), nil), &fakeHost{}, want{value: "null"})
		slowest = max(slowest, time.Since(start))
		runtime.GC()
	}
	longest := longestSince(pauses)
	cancel()
	group.Wait()
	t.Logf("slowest trivial call %v, longest pause of the collector %v", slowest, longest)
	// Loose, because other processes want the cores as well (a pause of 0.3 s was
	// seen beside two emulated machines): without the yield at the end of a
	// quantum both take as long as the loops, a minute.
	if slowest > time.Second || longest > time.Second {
		t.Errorf("a trivial call took %v, a pause %v", slowest, longest)
	}
}

const pauseMetric = "/sched/pauses/total/gc:seconds"

func gcPauses() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: pauseMetric}}
	metrics.Read(s)
	return s[0].Value.Float64Histogram()
}

// longestSince gives the upper bound of the longest pause after before.
func longestSince(before *metrics.Float64Histogram) time.Duration {
	now := gcPauses()
	for i := len(now.Counts) - 1; i >= 0; i-- {
		if now.Counts[i] > before.Counts[i] {
			return time.Duration(now.Buckets[i+1] * float64(time.Second))
		}
	}
	return 0
}

func TestRequests(t *testing.T) {
	p := newPool(t)
	for field, change := range map[string]func(*Request){
		"language":           func(r *Request) { r.Language = "perl" },
		"main":               func(r *Request) { r.Main = "other.js" },
		"modules":            func(r *Request) { r.Modules = nil },
		"modules.main.js":    func(r *Request) { r.Modules["main.js"] = "a\x00b" },
		"input":              func(r *Request) { r.Input = json.RawMessage("{") },
		"env":                func(r *Request) { r.Env = map[string]string{"A": strings.Repeat("x", 300<<10)} },
		"bindings":           func(r *Request) { r.Bindings = []Binding{{Name: "a b"}} },
		"bindings.A":         func(r *Request) { r.Bindings = []Binding{{Name: "A"}, {Name: "A"}} },
		"limits.wall":        func(r *Request) { r.Limits.Wall = 0 },
		"limits.cpu":         func(r *Request) { r.Limits.CPU = -1 },
		"limits.memory":      func(r *Request) { r.Limits.Memory = 1 << 20 },
		"limits.result":      func(r *Request) { r.Limits.Result = 1 << 40 },
		"limits.concurrency": func(r *Request) { r.Limits.Concurrency = 0 },
	} {
		r := js(trivial)
		change(r)
		_, err := p.Run(context.Background(), r, &fakeHost{})
		var bad *RequestError
		if !asError(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, name := range []string{"../x.js", "/x.js", "a//b.js", "a/", ".x.js", "a\nb.js", "a b.js", "", strings.Repeat("a", 300)} {
		r := js(trivial)
		r.Modules[name] = "1"
		if err := r.Validate(); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

func TestBusyAndClosed(t *testing.T) {
	p, err := NewInProcess(context.Background(), Config{GuestDir: guestDir, CacheDir: workersCache, MaxRuns: 2})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	wait := js(`export default () => new Promise((r) => setTimeout(r, 1e6))`)
	for range 2 {
		group.Go(func() {
			res, err := p.Run(context.Background(), wait, &fakeHost{})
			if err != nil || res.Error.Kind != KindCanceled {
				t.Error(res, err)
			}
		})
	}
	waitFor(t, func() bool { return p.Stats().Running == 2 })
	if _, err := p.Run(context.Background(), js(trivial), &fakeHost{}); err != ErrBusy {
		t.Errorf("error %v, want ErrBusy", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	group.Wait()
	if _, err := p.Run(context.Background(), js(trivial), &fakeHost{}); err != ErrClosed {
		t.Errorf("error %v, want ErrClosed", err)
	}
}

func TestDeterministic(t *testing.T) {
	p := newPool(t)
	seed, clock := uint64(7), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	src := `export default async () => { const a = Date.now(); await new Promise((r) => setTimeout(r, 3600e3)); return [a, Date.now() - a, performance.now(), Math.random(), crypto.randomUUID()] }`
	var values []string
	for i := range 3 {
		r := js(src)
		r.Seed, r.Clock = &seed, &clock
		if i == 2 {
			other := uint64(8)
			r.Seed = &other
		}
		res := run1(t, p, r, nil)
		check(t, res, &fakeHost{}, want{})
		values = append(values, string(res.Value))
	}
	if values[0] != values[1] || values[0] == values[2] || !strings.HasPrefix(values[0], "[1767225600000,3600000,3600000,") {
		t.Errorf("values %v", values)
	}
	var used []string
	for range 2 {
		r := js(`let n = 0; export default () => { for (;;) { n++; if (n % 1000 == 0) console.log(n) } }`)
		r.Seed, r.Limits.CPU = &seed, 20*time.Millisecond
		h := &fakeHost{}
		res := run1(t, p, r, h)
		used = append(used, fmt.Sprint(res.Error.Limit, res.Usage.Output))
	}
	if used[0] != used[1] || !strings.HasPrefix(used[0], "cpu") {
		t.Errorf("the limit came at different places: %v", used)
	}
}
