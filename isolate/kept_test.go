package isolate

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func keptCode(tenant string, size int) *functionCode {
	return &functionCode{Tenant: tenant, Language: "js", Main: "main.js", Modules: map[string]string{"main.js": strings.Repeat("x", size)}}
}

// pages is a snapshot of so many bytes.
type pages uint64

func (p pages) Bytes() uint64 { return uint64(p) }

func TestKeptIsBounded(t *testing.T) {
	f := &keptFunctions{most: 100 << 10}
	defer f.close()
	for i := range 10_000 {
		k := f.put(functionKey(fmt.Sprint("a", i)), keptCode("alice", 2000))
		f.settle(k, keptState{snapshot: pages(8 << 10)})
		if n, bytes, _ := f.count(); bytes > 50<<10 || n > 5 {
			t.Fatalf("%d entries with %d bytes: a tenant has more than half", n, bytes)
		}
	}
	for i := range 5 {
		f.put(functionKey(fmt.Sprint("b", i)), keptCode("bob", 2000))
	}
	// What one tenant deploys does not push out another's.
	if n, _, tenants := f.count(); n < 9 || !slices.Equal(tenants, []string{"alice", "bob"}) {
		t.Errorf("%d entries of %v", n, tenants)
	}
	if f.get("a9999") == nil || f.get("a0") != nil {
		t.Error("not the ones used last are kept")
	}
}

func TestKeptFirstWordCounts(t *testing.T) {
	f := &keptFunctions{}
	defer f.close()
	k := f.put("k", keptCode("a", 1))
	if again := f.put("k", keptCode("b", 1)); again != k {
		t.Error("another one took its place")
	}
	f.settle(k, keptState{reason: "first"})
	f.settle(k, keptState{snapshot: pages(1)})
	if s := f.look(k); s.reason != "first" || s.snapshot != nil {
		t.Errorf("%+v", s)
	}
}

func TestKeptGoesWhenIdle(t *testing.T) {
	f := &keptFunctions{idle: 20 * time.Millisecond}
	f.put("k", keptCode("a", 1))
	waitFor(t, func() bool { n, bytes, tenants := f.count(); return n == 0 && bytes == 0 && len(tenants) == 0 })
	// A run that holds one that was dropped settles it for itself alone.
	k := f.put("k", keptCode("a", 1))
	f.close()
	f.settle(k, keptState{snapshot: pages(1)})
	if n, bytes, _ := f.count(); n != 0 || bytes != 0 {
		t.Errorf("%d entries, %d bytes", n, bytes)
	}
}

func TestKeptConcurrently(t *testing.T) {
	f := &keptFunctions{most: 20 << 10, idle: time.Millisecond}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 300 {
				key := functionKey(fmt.Sprint(i % 7))
				k := f.get(key)
				if k == nil {
					k = f.put(key, keptCode(fmt.Sprint(g%2), 500))
				}
				f.settle(k, keptState{snapshot: pages(1000)})
				f.look(k)
			}
		})
	}
	wg.Wait()
	f.close()
	if n, bytes, tenants := f.count(); n != 0 || bytes != 0 || len(tenants) != 0 {
		t.Errorf("%d entries, %d bytes, %v are left", n, bytes, tenants)
	}
}

// Two functions have one key only if they are the same code of the same tenant
// with the same grants.
func TestFunctionKeys(t *testing.T) {
	type call struct {
		f *Function
		r Request
	}
	db := []Binding{{Name: "DB", Methods: []string{"query"}}}
	src := "export default () => 1"
	calls := map[string]call{
		"base":           {function(t, "a", "js", "m.js", src), Request{}},
		"tenant":         {function(t, "b", "js", "m.js", src), Request{}},
		"language":       {function(t, "a", "ts", "m.js", src), Request{}},
		"name":           {function(t, "a", "js", "n.js", src), Request{}},
		"code":           {function(t, "a", "js", "m.js", src+" "), Request{}},
		"more modules":   {function(t, "a", "js", "m.js", src, "n.js", ""), Request{}},
		"other main":     {function(t, "a", "js", "n.js", "", "m.js", src), Request{}},
		"moved text":     {function(t, "a", "js", "m.js", src+"n.js"), Request{}},
		"fetch":          {function(t, "a", "js", "m.js", src), Request{Fetch: true}},
		"binding":        {function(t, "a", "js", "m.js", src), Request{Bindings: db}},
		"more methods":   {function(t, "a", "js", "m.js", src), Request{Bindings: []Binding{{Name: "DB", Methods: []string{"query", "x"}}}}},
		"method or name": {function(t, "a", "js", "m.js", src), Request{Bindings: []Binding{{Name: "DB"}, {Name: "query"}}}},
	}
	seen := map[functionKey]string{}
	for name, c := range calls {
		k := c.f.key(&c.r)
		if other, ok := seen[k]; ok {
			t.Errorf("%q and %q have one key", name, other)
		}
		seen[k] = name
		// Input and environment are each call's own, and no part of it.
		c.r.Input, c.r.Env, c.r.RunID = []byte("1"), map[string]string{"A": "b"}, "x"
		if c.f.key(&c.r) != k {
			t.Errorf("%q: the key depends on the call", name)
		}
	}
}
