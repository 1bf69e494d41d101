package isolate

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHostileTypeScript feeds the compiler what it needs minutes, gigabytes or
// a deep stack for. None of it may harm a run beside it.
func TestHostileTypeScript(t *testing.T) {
	p := newWorkers(t, 1)
	worker := p.workers[0]
	const n = 200_000
	for name, src := range map[string]string{
		"deep brackets":  strings.Repeat("[", n) + strings.Repeat("]", n),
		"deep braces":    strings.Repeat("{", n) + strings.Repeat("}", n),
		"many arrows":    "x=" + strings.Repeat("a=>", n/3) + "1",
		"many ifs":       strings.Repeat("if(a)", n/5) + "1",
		"many smaller":   "x=" + strings.Repeat("a<", n/2) + "1",
		"long namespace": "namespace a" + strings.Repeat(".a", n/2) + "{export let c=1}",
	} {
		t.Run(name, func(t *testing.T) {
			var group sync.WaitGroup
			done := make(chan struct{})
			group.Go(func() {
				defer close(done)
				r := ts(src)
				r.Tenant = "mallory"
				res := run1(t, p, r, nil)
				check(t, res, &fakeHost{}, want{kind: KindRejected, file: "main.ts", message: "too complex", phase: PhaseNotStarted})
				if res.Usage.Wall > 10*time.Second {
					t.Errorf("took %v", res.Usage.Wall)
				}
			})
			// Another tenant's TypeScript is compiled meanwhile.
			for i := 0; ; i++ {
				r := ts("export default (): number => " + strings.Repeat("1 + ", i) + "1")
				start := time.Now()
				check(t, run1(t, p, r, nil), &fakeHost{}, want{})
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("alice waited %v", took)
				}
				select {
				case <-done:
					group.Wait()
					return
				default:
				}
			}
		})
	}
	if p.workers[0] != worker {
		t.Error("the worker did not live through it")
	}
	// The compilers that were killed come back.
	waitFor(t, func() bool {
		p.compiler.mu.Lock()
		defer p.compiler.mu.Unlock()
		return len(p.compiler.idle) == compilers
	})
}

func TestCompileInTime(t *testing.T) {
	p := newWorkers(t, 1)
	r := ts("x=" + strings.Repeat("a=>", 60_000) + "1")
	r.Limits.Wall = 100 * time.Millisecond
	res := run1(t, p, r, nil)
	if res.Status != StatusKilled || res.Error.Limit != "wall" || res.Phase != PhaseNotStarted {
		t.Errorf("%+v %v", res, res.Error)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r = ts("export default () => 1")
	if res, err := p.Run(ctx, r, &fakeHost{}); err != nil || res.Status != StatusKilled || res.Error.Kind != KindCanceled {
		t.Errorf("%+v %v", res, err)
	}
}

func TestCompileResults(t *testing.T) {
	p := newWorkers(t, 1)
	r := ts("type T = 1;\nexport default (): number => { throw new Error('e') }")
	for range 2 {
		check(t, run1(t, p, r, nil), &fakeHost{}, want{kind: KindThrown, file: "main.ts", line: 2, column: 42})
	}
	r.Tenant = "bob"
	check(t, run1(t, p, r, nil), &fakeHost{}, want{kind: KindThrown, file: "main.ts", line: 2, column: 42})
	c := p.compiler
	if c.last != 2 || len(c.cache.byKey) != 2 {
		t.Errorf("compiled %d times, %d results kept; want one for each tenant", c.last, len(c.cache.byKey))
	}
	big := &compiled{Text: strings.Repeat("x", compileCache/3)}
	for i := range 5 {
		c.cache.put(compileKey{tenant: "t", shift: i}, big)
	}
	if c.cache.size > compileCache || len(c.cache.byKey) != 2 || c.cache.get(compileKey{tenant: "t", shift: 4}) == nil {
		t.Errorf("%d bytes, %d results kept", c.cache.size, len(c.cache.byKey))
	}
}
