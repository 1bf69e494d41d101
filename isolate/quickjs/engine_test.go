package quickjs

import (
	"context"
	"os"
	"testing"
	"time"

	"sandboxd/isolate/guests"
)

func prelude(t testing.TB) string {
	b, err := os.ReadFile("../js/prelude.js")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func newEngine(t testing.TB) *Engine {
	t.Helper()
	wasm, err := guests.Load("../../build/guests", "quickjs")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	e, err := New(context.Background(), Options{Wasm: wasm, Prelude: prelude(t), MaxMemory: 256 << 20, CacheDir: "/tmp/iso/cache"})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("engine after %v: %+v", time.Since(start), e.Stats())
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestBoot(t *testing.T) { newEngine(t) }
