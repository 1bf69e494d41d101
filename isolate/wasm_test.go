package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// wasmGuests are compiled once by the Go toolchain, from wasm/testdata.
var wasmGuests struct {
	sync.Mutex
	text map[string]string
}

func wasmGuest(t testing.TB, name string) string {
	t.Helper()
	wasmGuests.Lock()
	defer wasmGuests.Unlock()
	if text := wasmGuests.text[name]; text != "" {
		return text
	}
	out := filepath.Join(t.TempDir(), name+".wasm")
	args := []string{"build", "-o", out}
	if name == "reactor" {
		args = append(args, "-buildmode=c-shared")
	}
	cmd := exec.Command("go", append(args, "main.go")...)
	cmd.Dir = filepath.Join("wasm", "testdata", name)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if wasmGuests.text == nil {
		wasmGuests.text = map[string]string{}
	}
	wasmGuests.text[name] = string(b)
	return string(b)
}

// wasmWall is the wall time of runs that compile a large module first.
var wasmWall = 20 * time.Second

func wasmRequest(t testing.TB, input string) *Request {
	r := wasmModule(wasmGuest(t, "command"))
	r.Input = json.RawMessage(input)
	return r
}

func wasmModule(module string) *Request {
	r := &Request{Tenant: "alice", Language: "wasm", Main: "main.wasm", Modules: map[string]string{"main.wasm": module}, Limits: testLimits}
	// The race detector and other suites slow down the compiler, and what compiled
	// code calls.
	r.Limits.Wall = wasmWall
	return r
}

// tenantPool is a pool with one shared worker and a few for tenants.
func tenantPool(t testing.TB, most int, idle time.Duration) *workerPool {
	t.Helper()
	p, err := NewWorkers(context.Background(), Config{GuestDir: guestDir, CacheDir: testCache, Workers: 1, Args: []string{"isolate-worker"}, UIDBase: testUID,
		TenantWorkers: most, TenantIdle: idle, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
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

func TestWasm(t *testing.T) {
	p := tenantPool(t, 2, time.Minute)
	t.Run("a command", func(t *testing.T) {
		r := wasmRequest(t, `{"do":"echo","text":"hello"}`)
		r.Env, r.Args = map[string]string{"B": "2", "A": "1"}, []string{"-v", "two words"}
		h := &fakeHost{}
		res := run1(t, p, r, h)
		echoed := `{"args":["main.wasm","-v","two words"],"env":["A=1","B=2"],"text":"hello"}`
		check(t, res, h, want{value: echoed})
		if res.ExitCode == nil || *res.ExitCode != 0 || !strings.Contains(h.text(), "warn: to standard error") || !strings.Contains(h.text(), "info: {") {
			t.Errorf("exit code %v, output %s", res.ExitCode, h.text())
		}
		if res.Usage.MemoryPeak < 1<<20 || res.Usage.CPU <= 0 {
			t.Errorf("usage %+v", res.Usage)
		}
	})
	t.Run("files beside it", func(t *testing.T) {
		r := wasmRequest(t, `{"do":"files"}`)
		r.Modules["data/words.txt"] = "alpha\nbeta\n"
		check(t, run1(t, p, r, nil), &fakeHost{}, want{value: `["one\ntwo\nthree\n","one\ntwo\nthree\n",["a","hard","link","alpha","beta"],14,"lph",true]`})
	})
	t.Run("a status", func(t *testing.T) {
		res := run1(t, p, wasmRequest(t, `{"do":"exit","n":9}`), nil)
		if res.Status != StatusError || res.Error.Kind != KindThrown || !strings.Contains(res.Error.Message, "status 9") || res.ExitCode == nil || *res.ExitCode != 9 {
			t.Errorf("%+v %v", res, res.Error)
		}
	})
	t.Run("bindings", func(t *testing.T) {
		h := &fakeHost{call: func(_ context.Context, c Call) (json.RawMessage, error) {
			if c.Method == "fail" {
				return nil, errors.New("no such key")
			}
			return json.RawMessage(fmt.Sprintf(`{"got":%s}`, c.Args)), nil
		}}
		r := wasmModule(wasmGuest(t, "reactor"))
		r.Bindings = []Binding{{Name: "KV", Methods: []string{"get", "fail"}}}
		r.Input = json.RawMessage(`[{"binding":"KV","method":"get","args":["k"]},{"binding":"KV","method":"fail","args":[]},{"binding":"DB","method":"query","args":[]}]`)
		res := run1(t, p, r, h)
		check(t, res, h, want{value: `[{"value":{"got":["k"]}},{"error":{"message":"no such key"}},{"error":{"message":"DB.query is not granted; granted: KV.get, KV.fail"}}]`})
		if res.Usage.Calls != 2 || !strings.Contains(h.text(), "info: 3 calls") {
			t.Errorf("%d calls, logs %s", res.Usage.Calls, h.text())
		}
		r.Limits.Calls = 1
		res = run1(t, p, r, h)
		if res.Status != StatusKilled || res.Error.Limit != "calls" || res.Phase != PhaseEffectsPossible {
			t.Errorf("%+v %v", res, res.Error)
		}
	})
	t.Run("deterministic", func(t *testing.T) {
		seed, clock := uint64(5), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		var first *Result
		for range 3 {
			r := wasmRequest(t, `{"do":"random"}`)
			r.Seed, r.Clock = &seed, &clock
			res := run1(t, p, r, nil)
			if first == nil {
				first = res
			}
			if string(res.Value) != string(first.Value) || !strings.Contains(string(res.Value), "2026-01-02T03:04:05") || res.Usage.CPU != first.Usage.CPU {
				t.Errorf("%s, cpu %v; at first %s, %v", res.Value, res.Usage.CPU, first.Value, first.Usage.CPU)
			}
		}
	})
	if n := p.Stats().TenantWorkers; n < 1 || n > 2 {
		t.Errorf("%d workers", n)
	}
}

func TestWasmLimits(t *testing.T) {
	p := tenantPool(t, 2, time.Minute)
	run1(t, p, wasmRequest(t, `{}`), nil) // compiles
	for _, x := range []struct {
		do, limit string
		set       func(*Limits)
	}{
		{"spin", "cpu", func(l *Limits) { l.CPU = 200 * time.Millisecond }},
		{"spin", "wall", func(l *Limits) { l.Wall = 200 * time.Millisecond }},
		{"sleep", "wall", func(l *Limits) { l.Wall = 200 * time.Millisecond }},
		{"grow", "memory", func(l *Limits) { l.Memory = 32 << 20 }},
		{"flood", "output", func(l *Limits) { l.Output = 100_000 }},
	} {
		t.Run(x.do+" "+x.limit, func(t *testing.T) {
			r := wasmRequest(t, fmt.Sprintf(`{"do":%q,"n":%d}`, x.do, map[string]int{"sleep": 3_600_000}[x.do]))
			x.set(&r.Limits)
			start := time.Now()
			res := run1(t, p, r, nil)
			if res.Status != StatusKilled || res.Error.Kind != KindLimit || res.Error.Limit != x.limit || res.Error.Used == "" || res.Error.Allowed == "" {
				t.Fatalf("%+v %+v", res, res.Error)
			}
			if x.limit == "wall" && time.Since(start) > r.Limits.Wall+overstay {
				t.Errorf("took %v", time.Since(start))
			}
			if x.do == "spin" && !strings.Contains(res.Error.Stack, "main.spin") {
				t.Errorf("stack %q", res.Error.Stack)
			}
			if x.do == "sleep" && res.Usage.CPU > 150*time.Millisecond {
				t.Errorf("sleeping took %v of processor time", res.Usage.CPU)
			}
		})
	}
	check(t, run1(t, p, wasmRequest(t, `{"do":"spin","n":3}`), nil), &fakeHost{}, want{})
}
