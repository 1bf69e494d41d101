package isolate

import (
	"testing"
	"time"
)

func TestKeptForgets(t *testing.T) {
	f := &keptFunctions{}
	defer f.close()
	put := func(tenant string, hash byte) {
		code := keptCode(tenant, 1000)
		code.Hash[0] = hash
		// One function has a key for each of its grants.
		for _, grants := range []string{"a", "b"} {
			k := f.put(functionKey(tenant+string(rune(hash))+grants), code)
			f.settle(k, keptState{snapshot: pages(8 << 10)})
		}
	}
	fill := func() {
		put("alice", 1)
		put("alice", 2)
		put("bob", 1)
	}
	fill()
	one := &Function{tenant: "alice", hash: [32]byte{1}}
	for _, c := range []struct {
		tenant string
		f      *Function
		left   int
	}{{"alice", one, 4}, {"alice", nil, 2}, {"", nil, 0}} {
		fill()
		f.forget(forgetting(c.tenant, c.f))
		if n, bytes, tenants := f.count(); n != c.left || (n == 0) != (bytes == 0) || (n == 0) != (len(tenants) == 0) {
			t.Errorf("%q, %v: %d entries with %d bytes of %v, want %d", c.tenant, c.f, n, bytes, tenants, c.left)
		}
	}
}

// TestForget: a worker does not keep what was deleted: the next call evaluates the
// module again.
func TestForget(t *testing.T) {
	p := newWorkersIn(t, testCache, 1)
	const evaluation = 100 * time.Millisecond
	// The time of an evaluation is in the call that makes it.
	var f *Function
	fast := func() bool {
		r := callOf(f, "")
		res := run1(t, p, r, nil)
		check(t, res, &fakeHost{}, want{value: "1024"})
		return res.Usage.Wall < evaluation/2
	}
	for _, c := range []string{"alice", "", "its own"} {
		f = jsFunction(t, `const n = []; for (let i = 0; i < 3e6; i++) n[i & 1023] = i; export default () => n.length // `+c)
		waitFor(t, fast)
		p.Forget("bob", nil)
		p.Forget("alice", jsFunction(t, "export default () => 1"))
		waitFor(t, fast)
		if c != "its own" {
			p.Forget(c, nil)
			waitFor(t, func() bool { return !fast() })
			continue
		}
		// Also by a run that is under way, or one that comes late.
		p.Forget("alice", f)
		for range 3 {
			waitFor(t, func() bool { return !fast() })
		}
	}
}

// TestForgetModules: the code of a tenant's module goes with its worker.
func TestForgetModules(t *testing.T) {
	p := tenantPool(t, 4, time.Hour)
	f := function(t, "alice", "wasm", "main.wasm", smallModule(3))
	call := func() {
		t.Helper()
		r := callOf(f, "")
		r.Limits.Wall = wasmWall
		if res := run1(t, p, r, nil); res.ExitCode == nil || *res.ExitCode != 3 {
			t.Fatalf("%+v, %v", res, res.Error)
		}
	}
	for range 2 {
		call()
		statusOf(t, p, of("bob", wasmModule(smallModule(3))))
		if n := p.Stats().TenantWorkers; n != 2 {
			t.Fatalf("%d workers", n)
		}
		p.Forget("alice", f)
		waitFor(t, func() bool { return p.Stats().TenantWorkers == 1 })
		call()
		p.Forget("alice", nil)
		waitFor(t, func() bool { return p.Stats().TenantWorkers == 1 })
	}
}
