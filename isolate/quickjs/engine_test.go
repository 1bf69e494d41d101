package quickjs

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"sandboxd/isolate/guests"
	"sandboxd/isolate/js"
)

// testCache is the compilation cache of all tests, shared with package isolate's.
const testCache = "../../build/cache/test/workers"

func TestMain(m *testing.M) {
	if err := os.MkdirAll(testCache, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if shared != nil {
		shared.Close()
	}
	os.Exit(code)
}

// shared is the engine of the tests that need no own one.
var shared *Engine

func sharedEngine(t testing.TB) *Engine {
	t.Helper()
	if shared == nil {
		shared = bootEngine(t)
	}
	return shared
}

func newEngine(t testing.TB) *Engine {
	t.Helper()
	e := bootEngine(t)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func prelude(t testing.TB) string {
	t.Helper()
	streams, err := guests.Load("../../build/guests", "streams")
	if err != nil {
		t.Fatal(err)
	}
	return js.Source(string(streams))
}

func bootEngine(t testing.TB) *Engine {
	t.Helper()
	wasm, err := guests.Load("../../build/guests", "quickjs")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	e, err := New(context.Background(), Options{Wasm: wasm, Prelude: prelude(t), MaxMemory: 256 << 20, CacheDir: testCache, Warm: []func(context.Context, *VM) error{warm}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("engine after %v: %+v", time.Since(start), e.Stats())
	return e
}

// warm lets the engine learn which pages a call writes.
func warm(_ context.Context, vm *VM) error {
	if err := vm.Begin(&testHooks{}, 64<<20, 1); err != nil {
		return err
	}
	v, threw, err := vm.eval("warm.js", "let a = [1, 2].map(String); a.join()", evalGlobal)
	return vm.thrown("warm", v, threw, err)
}

func TestBoot(t *testing.T) {
	s := newEngine(t).Stats()
	if s.Idle == 0 || s.Hot == 0 || s.StoredImageBytes == 0 || s.StoredImageBytes > s.ImageBytes/2 {
		t.Errorf("%+v", s)
	}
}

// TestForeign: another binary than the one that is known is refused.
func TestForeign(t *testing.T) {
	empty := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	for name, wasm := range map[string][]byte{"nothing": nil, "text": []byte("hello"), "no memory": empty} {
		if e, err := New(context.Background(), Options{Wasm: wasm, Prelude: "1", MaxMemory: 64 << 20}); err == nil {
			e.Close()
			t.Errorf("%s is taken", name)
		}
	}
	wasm, err := guests.Load("../../build/guests", "quickjs")
	if err != nil {
		t.Fatal(err)
	}
	for name, prelude := range map[string]string{"syntax": "(", "throws": "throw 1", "no function": "1", "inner": "() => { throw new Error('x') }"} {
		o := Options{Wasm: wasm, Prelude: prelude, MaxMemory: 64 << 20, CacheDir: testCache}
		if e, err := New(context.Background(), o); err == nil {
			e.Close()
			t.Errorf("the prelude %s is taken", name)
		}
	}
}
