package isolate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// smallModule is a module that returns a status, each one another binary.
func smallModule(status byte) string { return wasmOf("", "\x41"+string(status&0x3f)) }

// wasmOf is a module whose function run, of locals, has the code for an i32.
func wasmOf(locals, code string) string {
	sized := func(s string) string { return string(binary.AppendUvarint(nil, uint64(len(s)))) + s }
	if locals == "" {
		locals = "\x00"
	}
	body := sized(locals + code + "\x0b")
	return "\x00asm\x01\x00\x00\x00" + "\x01" + sized("\x01\x60\x00\x01\x7f") + "\x03\x02\x01\x00" +
		"\x07" + sized("\x01"+sized("run")+"\x00\x00") + "\x0a" + sized("\x01"+body)
}

// manyFunctions has n copies of a function that is as much for a compiler as is
// admitted.
func manyFunctions(n int) string {
	num := func(n int) string { return string(binary.AppendUvarint(nil, uint64(n))) }
	sized := func(s string) string { return num(len(s)) + s }
	const locals, blocks = 280, 1000
	var code strings.Builder
	for i := range blocks {
		// A block that every local is alive in.
		code.WriteString("\x03\x40\x20" + num(i%locals) + "\x20" + num((i*7+1)%locals) + "\x6a\x22" + num((i*3+2)%locals) + "\x0d\x00\x0b")
	}
	body := sized("\x01" + num(locals) + "\x7f" + code.String() + "\x41\x00\x0b")
	return "\x00asm\x01\x00\x00\x00" + "\x01" + sized("\x01\x60\x00\x01\x7f") + "\x03" + sized(num(n)+strings.Repeat("\x00", n)) +
		"\x07" + sized("\x01"+sized("run")+"\x00\x00") + "\x0a" + sized(num(n)+strings.Repeat(body, n))
}

func statusOf(t testing.TB, p Pool, r *Request) int {
	t.Helper()
	res := run1(t, p, r, nil)
	if res.ExitCode == nil {
		t.Fatalf("%+v %v", res, res.Error)
	}
	return *res.ExitCode
}

func of(tenant string, r *Request) *Request {
	r.Tenant = tenant
	return r
}

// own lists the workers that belong to tenants.
func own(p *workerPool) map[string][]*process {
	p.tenants.mu.Lock()
	defer p.tenants.mu.Unlock()
	out := map[string][]*process{}
	for _, w := range p.tenants.all {
		if w.proc != nil {
			out[w.tenant+" "+w.kind] = append(out[w.tenant+" "+w.kind], w.proc)
		}
	}
	return out
}

// TestTenantWorkers: each tenant has a process, with a user of its own, that is
// kept, and gives its place to others when it is idle.
func TestTenantWorkers(t *testing.T) {
	p := tenantPool(t, 2, time.Hour)
	for i, who := range []string{"a", "a", "b", "a", "b"} {
		if got := statusOf(t, p, of(who, wasmModule(smallModule(byte(i))))); got != i {
			t.Errorf("status %d, want %d", got, i)
		}
	}
	first := own(p)
	if len(first) != 2 || len(first["a wasm"]) != 1 || len(first["b wasm"]) != 1 {
		t.Fatalf("workers %v", first)
	}
	a := first["a wasm"][0]
	if a.cmd.SysProcAttr.Credential.Uid == first["b wasm"][0].cmd.SysProcAttr.Credential.Uid {
		t.Error("two tenants have the same user")
	}
	// A third one takes the place of the one that was idle longest.
	statusOf(t, p, of("c", wasmModule(smallModule(1))))
	<-a.dead
	if now := own(p); len(now) != 2 || len(now["a wasm"]) != 0 || len(now["c wasm"]) != 1 {
		t.Errorf("workers %v", now)
	}
	// With all places in use there is none.
	release := make(chan struct{})
	var group sync.WaitGroup
	for _, who := range []string{"b", "c"} {
		group.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			go func() { <-release; cancel() }()
			if _, err := p.Run(ctx, of(who, sleeper()), &fakeHost{}); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { return busyWorkers(p) == 2 })
	if _, err := p.Run(context.Background(), of("d", wasmModule(smallModule(1))), &fakeHost{}); !errors.Is(err, ErrBusy) {
		t.Errorf("error %v", err)
	}
	close(release)
	group.Wait()
	if got := statusOf(t, p, of("d", wasmModule(smallModule(7)))); got != 7 {
		t.Errorf("status %d", got)
	}
}

func busyWorkers(p *workerPool) (n int) {
	p.tenants.mu.Lock()
	defer p.tenants.mu.Unlock()
	for _, w := range p.tenants.all {
		if w.load > 0 && w.compiling == nil {
			n++
		}
	}
	return n
}

func TestIdleTenantWorkerEnds(t *testing.T) {
	p := tenantPool(t, 2, 50*time.Millisecond)
	statusOf(t, p, wasmModule(smallModule(1)))
	waitFor(t, func() bool { return p.Stats().TenantWorkers == 0 })
	if got := statusOf(t, p, wasmModule(smallModule(2))); got != 2 {
		t.Errorf("status %d", got)
	}
}

// TestModulesAreKept: a module is compiled once, and the ones that were not used
// for longest are dropped.
func TestModulesAreKept(t *testing.T) {
	p := tenantPool(t, 1, time.Hour)
	for range 2 {
		for i := range keptModules + 4 {
			if got := statusOf(t, p, wasmModule(smallModule(byte(i)))); got != i {
				t.Errorf("status %d, want %d", got, i)
			}
		}
	}
	p.tenants.mu.Lock()
	n := len(p.tenants.all[0].modules)
	p.tenants.mu.Unlock()
	if n != keptModules || p.Stats().TenantWorkers != 1 {
		t.Errorf("%d modules, %d workers", n, p.Stats().TenantWorkers)
	}
	// Many at once wait for one compilation.
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if got := statusOf(t, p, wasmModule(smallModule(63))); got != -1 && got != 63 {
				t.Errorf("status %d", got)
			}
		})
	}
	group.Wait()
}

// TestCompileBomb ends at its own limit, and nothing else does: not a run of
// another tenant, nor one of the same tenant.
func TestCompileBomb(t *testing.T) {
	before := compileWasm
	compileWasm = time.Second
	t.Cleanup(func() { compileWasm = before })
	p := tenantPool(t, 4, time.Hour)
	statusOf(t, p, of("bomber", wasmModule(smallModule(1))))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	beside := make(chan *Result, 1)
	go func() {
		res, err := p.Run(ctx, of("bomber", sleeper()), &fakeHost{})
		if err != nil {
			t.Error(err)
		}
		beside <- res
	}()
	waitFor(t, func() bool { return busyWorkers(p) == 1 })
	done := make(chan *Result, 1)
	bomb := wasmModule(manyFunctions(400))
	bomb.Limits.Wall = time.Minute
	go func() {
		res, err := p.Run(context.Background(), of("bomber", bomb), &fakeHost{})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	served := 0
	for {
		select {
		case res := <-done:
			if res == nil || res.Status != StatusKilled || res.Error.Kind != KindLimit || res.Error.Limit != "compile" || res.Phase != PhaseNotStarted || res.Error.Allowed != "1s" {
				t.Fatalf("%+v %v", res, res.Error)
			}
			if served < 3 {
				t.Errorf("%d runs of another tenant beside it", served)
			}
			select {
			case res := <-beside:
				t.Errorf("the run beside it ended: %+v %v", res, res.Error)
			default:
			}
			cancel()
			if res := <-beside; res == nil || res.Error == nil || res.Error.Kind != KindCanceled {
				t.Errorf("the run beside it: %+v", res)
			}
			return
		default:
			check(t, run1(t, p, of("other", js(`export default () => 1`)), nil), &fakeHost{}, want{value: "1"})
			statusOf(t, p, of("other", wasmModule(smallModule(2))))
			served++
		}
	}
}

// TestCompilingIsWallTime: a run waits for its module's compilation no longer than
// it may take, and no longer than its caller does. One that is compiled costs
// nothing of it.
func TestCompilingIsWallTime(t *testing.T) {
	p := tenantPool(t, 4, time.Hour)
	slow := wasmModule(manyFunctions(400))
	slow.Limits.Wall = 300 * time.Millisecond
	began := time.Now()
	res := run1(t, p, slow, nil)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a wall limit of %v ended it after %v", slow.Limits.Wall, took)
	}
	e := res.Error
	if res.Status != StatusKilled || e == nil || e.Kind != KindLimit || e.Limit != "wall" || e.Allowed != "300ms" || e.Used == "" || !strings.Contains(e.Message, "compiled") || res.Phase != PhaseNotStarted {
		t.Errorf("%+v %v", res, e)
	}
	waitFor(t, func() bool { return p.Stats().TenantWorkers == 0 })
	slow.Limits.Wall = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan *Result, 1)
	go func() {
		res, err := p.Run(ctx, slow, &fakeHost{})
		if err != nil {
			t.Error(err)
		}
		canceled <- res
	}()
	waitFor(t, func() bool {
		p.tenants.mu.Lock()
		defer p.tenants.mu.Unlock()
		return len(p.tenants.all) == 1 && p.tenants.all[0].proc != nil && p.tenants.all[0].compiling != nil
	})
	cancel()
	if res := <-canceled; res == nil || res.Error == nil || res.Error.Kind != KindCanceled {
		t.Errorf("%+v", res)
	}
	// A second run of a compiled module has all of its time for itself.
	small := wasmModule(smallModule(7))
	statusOf(t, p, small)
	if got := statusOf(t, p, small); got != 7 {
		t.Errorf("status %d", got)
	}
}

// sleeper waits for ever in poll_oneoff.
func sleeper() *Request {
	sized := func(s string) string { return string(binary.AppendUvarint(nil, uint64(len(s)))) + s }
	data := strings.Repeat("\x00", 24) + "\xff\xff\xff\xff\xff\xff\xff\x7f" + strings.Repeat("\x00", 16)
	body := sized("\x00" + "\x41\x00\x41\x80\x08\x41\x01\x41\x80\x10\x10\x00\x0b")
	return wasmModule("\x00asm\x01\x00\x00\x00" + "\x01" + sized("\x02\x60\x04\x7f\x7f\x7f\x7f\x01\x7f\x60\x00\x01\x7f") +
		"\x02" + sized("\x01"+sized("wasi_snapshot_preview1")+sized("poll_oneoff")+"\x00\x00") + "\x03\x02\x01\x01" +
		"\x05\x03\x01\x00\x01" + "\x07" + sized("\x01"+sized("run")+"\x00\x01") + "\x0a" + sized("\x01"+body) +
		"\x0b" + sized("\x01\x00\x41\x00\x0b"+sized(data)))
}

// TestStrict: with strict isolation everything of a tenant runs in processes of
// its own, and a tenant without it is not let in.
func TestStrict(t *testing.T) {
	p := tenantPool(t, 4, time.Hour)
	for _, x := range []struct{ language, main, src string }{
		{"js", "main.js", `export default (i) => i + 1`}, {"ts", "main.ts", `export default (i: number): number => i + 1`},
		{"python", "main.py", "def main(input, env):\n    return input + 1"},
	} {
		for _, who := range []string{"a", "b"} {
			r := &Request{Tenant: who, Language: x.language, Main: x.main, Modules: map[string]string{x.main: x.src}, Limits: testLimits, Strict: true, Input: []byte("1")}
			r.Limits.Wall = 30 * time.Second
			check(t, run1(t, p, r, nil), &fakeHost{}, want{value: "2"})
		}
	}
	// A type error in TypeScript still says where.
	r := of("a", ts("export default () => {\n  throw new Error('here') as Error\n}"))
	r.Strict = true
	check(t, run1(t, p, r, nil), &fakeHost{}, want{kind: KindThrown, message: "here", file: "main.ts", line: 2, column: 13})
	all := own(p)
	if len(all) != 4 || len(all["a js"]) != 1 || len(all["b js"]) != 1 || len(all["a python"]) != 1 || len(all["b python"]) != 1 {
		t.Errorf("workers %v", all)
	}
	if n := p.workers[0]; n == nil || len(own(p)) != 4 {
		t.Error("the shared worker has gone")
	}
	check(t, run1(t, p, of("c", js(`export default () => 3`)), nil), &fakeHost{}, want{value: "3"})
	if len(own(p)) != 4 {
		t.Errorf("workers %v", own(p))
	}
}

// TestTenantWorkerDies: only the runs in it fail.
func TestTenantWorkerDies(t *testing.T) {
	p := tenantPool(t, 4, time.Hour)
	errs := map[string]chan error{}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, who := range []string{"a", "b"} {
		errs[who] = make(chan error, 1)
		go func() {
			_, err := p.Run(ctx, of(who, sleeper()), &fakeHost{})
			errs[who] <- err
		}()
	}
	waitFor(t, func() bool { return busyWorkers(p) == 2 })
	if err := own(p)["a wasm"][0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var w *WorkerError
	if err := <-errs["a"]; !errors.As(err, &w) {
		t.Errorf("error %v", err)
	}
	if got := statusOf(t, p, of("a", wasmModule(smallModule(3)))); got != 3 {
		t.Errorf("status %d", got)
	}
	select {
	case err := <-errs["b"]:
		t.Errorf("the other tenant's run ended: %v", err)
	default:
	}
	cancel()
	if err := <-errs["b"]; err != nil {
		t.Error(err)
	}
}

// TestTenantContainment: native code in a tenant's worker can do as little as in
// any other, and what it was given is less.
func TestTenantContainment(t *testing.T) {
	p, err := NewWorkers(context.Background(), Config{GuestDir: guestDir, CacheDir: testCache, Workers: 1, Args: []string{"isolate-worker-probe"}, UIDBase: testUID})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	statusOf(t, p, wasmModule(smallModule(1)))
	r := js(`export default () => 1`)
	r.Strict = true
	check(t, run1(t, p, r, nil), &fakeHost{}, want{value: "1"})
	for kind, procs := range own(p.(*workerPool)) {
		w := procs[0]
		if len(w.ready.Probe) < 15 {
			t.Fatalf("%s: the probe tried little: %v", kind, w.ready.Probe)
		}
		for what, came := range w.ready.Probe {
			if !strings.Contains(came, "operation not permitted") && !strings.Contains(came, "function not implemented") {
				t.Errorf("%s: %s: %s", kind, what, came)
			}
		}
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", w.cmd.Process.Pid, fd.Name()))
			// Go's runtime reads its cgroup's limit.
			if err == nil && strings.HasPrefix(to, "/") && to != "/dev/null" && !strings.HasPrefix(to, "/sys/fs/cgroup/") && strings.HasSuffix(kind, kindWasm) {
				t.Errorf("%s holds %s", kind, to)
			}
		}
	}
}

// The time from nothing to an answer of a tenant's first run, and of the next.
func BenchmarkTenant(b *testing.B) {
	p := tenantPool(b, 2, time.Hour)
	b.Run("first", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			statusOf(b, p, of(fmt.Sprintf("t%d", i), wasmModule(smallModule(1))))
		}
	})
	b.Run("next", func(b *testing.B) {
		for b.Loop() {
			statusOf(b, p, of("next", wasmModule(smallModule(1))))
		}
	})
	b.Run("go", func(b *testing.B) {
		r := of("next", wasmRequest(b, `{}`))
		for b.Loop() {
			statusOf(b, p, r)
		}
	})
	b.Run("strict js", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			r := of(fmt.Sprintf("s%d", i), js(`export default () => 1`))
			r.Strict = true
			run1(b, p, r, nil)
		}
	})
}
