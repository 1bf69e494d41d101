package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestWorkersRun(t *testing.T) {
	p := newWorkers(t, 2)
	for i := range p.workers {
		if w := p.workers[i]; w.ready.Filters < 1 || w.ready.LandlockABI < 6 {
			t.Errorf("worker %d says %+v", i, w.ready)
		}
	}
	h := &fakeHost{call: func(_ context.Context, c Call) (json.RawMessage, error) {
		if c.Method == "fail" {
			return nil, errors.New("no rows")
		}
		return c.Args, nil
	}}
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			r := ts(`export default async (input: number, env: any) => {
				console.log("run", input);
				const all = await Promise.all([1, 2, 3].map((n) => env.X.echo(n, input)));
				try { await env.X.fail() } catch (e) { all.push(e.message) }
				return all;
			}`)
			r.Input = json.RawMessage(fmt.Sprint(i))
			r.Bindings = []Binding{{Name: "X", Methods: []string{"echo", "fail"}}}
			res, err := p.Run(context.Background(), r, h)
			if err != nil {
				t.Error(err)
				return
			}
			if want := fmt.Sprintf(`[[1,%d],[2,%d],[3,%d],"no rows"]`, i, i, i); string(res.Value) != want || res.Usage.Calls != 4 || res.Phase != PhaseFinished {
				t.Errorf("%s %+v %v", res.Value, res, res.Error)
			}
			if !strings.Contains(h.text(), fmt.Sprintf("info: run %d\n", i)) {
				t.Errorf("no output of run %d", i)
			}
		})
	}
	group.Wait()
	if s := p.Stats(); s.Workers != 2 || s.Runs != 50 || s.Running != 0 {
		t.Errorf("%+v", s)
	}
}

// TestContainment is about native code in a worker.
func TestContainment(t *testing.T) {
	p, err := NewWorkers(context.Background(), Config{GuestDir: guestDir, CacheDir: testCache, Workers: 1, Args: []string{"isolate-worker-probe"}, UIDBase: testUID})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	w := p.(*workerPool).workers[0]
	if len(w.ready.Probe) < 15 {
		t.Fatalf("the probe tried little: %v", w.ready.Probe)
	}
	for what, came := range w.ready.Probe {
		if !strings.Contains(came, "operation not permitted") && !strings.Contains(came, "function not implemented") {
			t.Errorf("%s: %s", what, came)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{fmt.Sprintf("Uid:\t%d\t%d", testUID, testUID), "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Groups:\t \n"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("no %q in\n%s", line, status)
		}
	}
	for _, ns := range []string{"net", "ipc", "uts", "mnt", "cgroup"} {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", w.cmd.Process.Pid, ns))
		if err != nil {
			t.Fatal(err)
		}
		if ours, _ := os.Readlink("/proc/self/ns/" + ns); ours == theirs {
			t.Errorf("the worker is in our %s namespace", ns)
		}
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.cmd.Process.Pid)); err != nil || len(env) != 0 {
		t.Errorf("environment %q, %v", env, err)
	}
	// It still works.
	check(t, run1(t, p, js(`export default () => 1`), nil), &fakeHost{}, want{value: "1"})
}

func TestHostileWorker(t *testing.T) {
	for _, mode := range []string{
		"exit", "empty", "kind", "short", "length", "huge", "descriptor", "other run", "not granted", "fetch", "bad args",
		"same number", "number before", "waiting unasked", "too many calls", "bad event", "bad level", "much output", "bad result", "odd status", "odd phase",
		"loaded unasked", "no error", "large result", "memory", "cut event", "more in event", "event data", "event of another age", "event before time", "event data not text", "result not text", "args not text", "unknown field", "result not JSON",
	} {
		t.Run(mode, func(t *testing.T) {
			p := hostilePool(t, mode)
			first := p.workers[0]
			r := hostileRequest()
			if mode == "memory" { // touching so much may take a busy machine longer than a run may
				r.Limits.Wall = time.Minute
			}
			h := limitHost()
			res, err := p.Run(context.Background(), r, h)
			var w *WorkerError
			if !errors.As(err, &w) || w.Reason == "" {
				t.Fatalf("result %+v, error %v; want a WorkerError", res, err)
			}
			if mode == "memory" && !strings.Contains(w.Reason, "bytes of memory") {
				t.Errorf("reason %q", w.Reason)
			}
			if len(h.text()) > 3<<20 {
				t.Errorf("%d bytes of output came through", len(h.text()))
			}
			<-first.ended
			waitFor(t, func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.workers[0] != nil && p.workers[0] != first
			})
		})
	}
}

func hostilePool(t *testing.T, mode string) *workerPool {
	t.Helper()
	p, err := NewWorkers(context.Background(), Config{GuestDir: guestDir, CacheDir: testCache, Workers: 1, Args: []string{"hostile-worker:" + mode}, UIDBase: testUID, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p.(*workerPool)
}

func hostileRequest() *Request {
	r := js(trivial)
	r.Bindings = []Binding{{Name: "X", Methods: []string{"now", "hang"}}}
	r.Limits.Calls, r.Limits.Result, r.Limits.Output = 10, 100_000, 100_000
	return r
}

// TestOverstay: a worker that does not end a run in time is killed.
func TestOverstay(t *testing.T) {
	p := hostilePool(t, "silent")
	first := p.workers[0]
	r := hostileRequest()
	r.Limits.Wall = 100 * time.Millisecond
	start := time.Now()
	res, err := p.Run(context.Background(), r, limitHost())
	took := time.Since(start)
	if err != nil || res.Status != StatusKilled || res.Error.Limit != "wall" || res.Phase != PhaseStarted {
		t.Fatalf("%+v, %v", res, err)
	}
	if took < r.Limits.Wall+overstay || took > r.Limits.Wall+overstay+time.Second {
		t.Errorf("took %v", took)
	}
	<-first.ended
	waitFor(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.workers[0] != nil && p.workers[0] != first
	})

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	r.Limits.Wall = time.Minute
	res, err = p.Run(ctx, r, limitHost())
	if err != nil || res.Status != StatusKilled || res.Error.Kind != KindCanceled {
		t.Fatalf("%+v, %v", res, err)
	}
}

// TestSizes: what is counted on both sides has the same size there.
func TestSizes(t *testing.T) {
	p := newWorkers(t, 1)
	h := &fakeHost{call: func(_ context.Context, c Call) (json.RawMessage, error) { return c.Args, nil }}
	r := js(`export default async (i, env) => {
		const nasty = "<&>\u2028\ud800\0".repeat(15000);
		env.LOG.info(nasty, {nasty});
		const [back] = await env.X.echo(nasty);
		return {same: back === nasty, nasty: nasty.slice(0, 60000)};
	}`)
	r.Bindings = []Binding{{Name: "X", Methods: []string{"echo"}}, {Name: "LOG"}}
	r.Limits.Output, r.Limits.Result = 500_000, 300_000
	res := run1(t, p, r, h)
	check(t, res, h, want{logs: "info: <&>"})
	if !strings.HasPrefix(string(res.Value), `{"same":true,"nasty":"<&>`) {
		t.Errorf("%.100s", res.Value)
	}
	if n := len(h.events); n != 1 || res.Usage.Output != outputOf(h.events[0].Message, string(h.events[0].Data)) {
		t.Errorf("%d events, output %d", n, res.Usage.Output)
	}
}

// TestDeaf: a worker that reads nothing blocks nobody for longer than it may.
func TestDeaf(t *testing.T) {
	p := hostilePool(t, "deaf")
	r := hostileRequest()
	r.Limits.Wall = 100 * time.Millisecond
	r.Input = json.RawMessage(`"` + strings.Repeat("x", 8<<20) + `"`)
	res, err := p.Run(context.Background(), r, limitHost())
	if err != nil || res.Status != StatusKilled || res.Error.Limit != "wall" {
		t.Fatalf("%+v, %v", res, err)
	}
}

// TestManyAnswers: what the host answers counts against the run's memory while
// the code has not taken it.
func TestManyAnswers(t *testing.T) {
	p := newWorkers(t, 1)
	worker := p.workers[0]
	large := json.RawMessage(`"` + strings.Repeat("x", 10<<20) + `"`)
	h := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) { return large, nil }}
	r := js(`export default async (i, env) => { const all = Array.from({length: 20}, () => env.X.large()); for (let i = 0; i < 1e10; i++) ; await Promise.all(all) }`)
	r.Bindings = []Binding{{Name: "X", Methods: []string{"large"}}}
	r.Limits.Concurrency, r.Limits.CPU, r.Limits.Wall, r.Limits.Memory = 20, time.Minute, time.Minute, 64<<20
	res := run1(t, p, r, h)
	if res.Status != StatusKilled || res.Error.Limit != "answers" {
		t.Errorf("%+v %v", res, res.Error)
	}
	if p.workers[0] != worker {
		t.Error("the worker did not live through it")
	}
	// One at a time is no burden.
	r = js(`export default async (i, env) => { let n = 0; for (let i = 0; i < 2; i++) n += (await env.X.large()).length; return n }`)
	r.Bindings = []Binding{{Name: "X", Methods: []string{"large"}}}
	r.Limits.Memory = 256 << 20
	check(t, run1(t, p, r, h), h, want{value: "20971520"})
}

// TestLies: what a worker says of itself does not hide what it did.
func TestLies(t *testing.T) {
	res, err := hostilePool(t, "lies").Run(context.Background(), hostileRequest(), limitHost())
	if err != nil || res.Usage.Calls != 1 || res.Phase != PhaseFinished && res.Phase != PhaseEffectsPossible {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestKilledWorker: a worker dies with runs in it; the next one takes over.
func TestKilledWorker(t *testing.T) {
	p := newWorkers(t, 1)
	first := p.workers[0]
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() {
			_, err := p.Run(context.Background(), js(`export default () => new Promise((r) => setTimeout(r, 1e6))`), &fakeHost{})
			errs <- err
		}()
	}
	waitFor(t, func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return len(first.runs) == cap(errs)
	})
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range cap(errs) {
		var w *WorkerError
		if err := <-errs; !errors.As(err, &w) || w.Phase != PhaseStarted {
			t.Errorf("error %v", err)
		}
	}
	// Waits for the new worker.
	check(t, run1(t, p, js(`export default () => 2`), nil), &fakeHost{}, want{value: "2"})
	if p.workers[0] == first {
		t.Error("the dead worker is still there")
	}
}

func TestWorkersClose(t *testing.T) {
	p := newWorkers(t, 2)
	pids := []int{p.workers[0].cmd.Process.Pid, p.workers[1].cmd.Process.Pid}
	done := make(chan error)
	go func() {
		_, err := p.Run(context.Background(), js(`export default () => { for (;;) {} }`), &fakeHost{})
		done <- err
	}()
	waitFor(t, func() bool { return p.Stats().Running == 1 })
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
	if _, err := p.Run(context.Background(), js(trivial), &fakeHost{}); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestWorkersStart(t *testing.T) {
	ctx := context.Background()
	var guest *GuestError
	if _, err := NewWorkers(ctx, Config{GuestDir: t.TempDir(), CacheDir: testCache}); !errors.As(err, &guest) {
		t.Errorf("without a guest: %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/quickjs.wasm", []byte("\x00asm"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := NewInProcess(ctx, Config{GuestDir: dir}); !errors.As(err, &guest) {
		t.Errorf("with another guest: %v", err)
	}
	var w *WorkerError
	if _, err := NewWorkers(ctx, Config{GuestDir: guestDir, CacheDir: testCache, Workers: 1, UIDBase: testUID, Args: []string{"hostile-worker:no such mode"}, Exe: "/bin/false"}); !errors.As(err, &w) {
		t.Errorf("a worker that ends: %v", err)
	}
}

func FuzzFrame(f *testing.F) {
	kinds := string([]rune{frameEvent, frameCall, frameDrop, frameResult, frameAnswer, frameRun, frameCancel})
	for _, x := range []frame{
		{kind: frameCall, run: 1, call: 2, binding: "X", method: "y", data: []byte("[]")},
		{kind: frameAnswer, run: 1, call: 2, ok: true, data: []byte("1")},
		{kind: frameResult, run: 3, data: []byte("{}")},
	} {
		f.Add(x.encode(nil))
	}
	f.Add([]byte{})
	f.Add([]byte{frameCall, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := decodeFrame(b, kinds)
		if err != nil {
			if !errors.Is(err, errFrame) {
				t.Errorf("error %v", err)
			}
			return
		}
		y, err := decodeFrame(x.encode(nil), kinds)
		if err != nil || y.kind != x.kind || y.run != x.run || y.call != x.call || y.ok != x.ok || y.binding != x.binding || y.method != x.method || string(y.data) != string(x.data) {
			t.Errorf("%+v came back as %+v, %v", x, y, err)
		}
	})
}

func FuzzSourceMap(f *testing.F) {
	f.Add("AAAA;AACA,EAAE;;CADD", 2, 3)
	f.Add("gggggggggggggggggg", 1, 1)
	f.Fuzz(func(t *testing.T, mappings string, line, column int) {
		m := &sourceMap{mappings: mappings}
		m.find(line, column)
	})
}
