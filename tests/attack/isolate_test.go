package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/isolate"
	"sandboxd/tests/internal/harness"
)

// host answers what a run asks, and notes what should not have come.
type host struct {
	mu    sync.Mutex
	wrong []string
	calls int
}

func (h *host) Call(_ context.Context, c isolate.Call) (json.RawMessage, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	var args []json.RawMessage
	if c.Binding != "KV" || c.Method != "get" || json.Unmarshal(c.Args, &args) != nil {
		h.wrong = append(h.wrong, fmt.Sprintf("%s.%s(%.100s)", c.Binding, c.Method, c.Args))
		return nil, errors.New("not granted")
	}
	return json.RawMessage(`"feathers"`), nil
}

func (h *host) Event(isolate.Event) {}

func script(tenant, code string) *isolate.Request {
	return &isolate.Request{
		Tenant: tenant, RunID: "attack", Language: "js", Main: "main.js", Modules: map[string]string{"main.js": code},
		Bindings: []isolate.Binding{{Name: "KV", Methods: []string{"get"}}},
		Limits: isolate.Limits{
			Wall: 10 * time.Second, CPU: 3 * time.Second, Memory: 64 << 20, Output: 1 << 20, Result: 1 << 20,
			Calls: 100, Requests: 1, Concurrency: 8,
		},
	}
}

func newPool(t *testing.T) isolate.Pool {
	t.Helper()
	bin, err := harness.Bin()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := isolate.NewWorkers(t.Context(), isolate.Config{
		GuestDir: filepath.Join(bin, "guests"), CacheDir: t.TempDir(), Workers: 1, UIDBase: uidBase - 256,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool
}

// Code that takes its own world apart harms that world only: it ends with an
// answer of ours, asks the host for nothing but what was granted, and the next
// run, of another tenant in the same worker, finds everything in order.
func TestHostileScripts(t *testing.T) {
	const ask = `export default async (i, env) => await env.KV.get("x")`
	const okOrThrown = "ok code_error"
	tests := map[string]struct{ code, want string }{
		"JSON":               {`JSON.stringify = () => "["; JSON.parse = () => { throw 2 }; ` + ask, okOrThrown},
		"promises":           {`Promise.prototype.then = function () { return this }; Promise.resolve = () => 7; ` + ask, okOrThrown + " limit_exceeded"},
		"arrays":             {`Array.prototype.map = Array.prototype.push = Array.prototype.join = () => { throw 3 }; ` + ask, okOrThrown},
		"array iterator":     {`Array.prototype[Symbol.iterator] = function* () { yield "drop" }; ` + ask, okOrThrown},
		"object's prototype": {`for (const k of ["binding", "method", "args", "then", "toJSON", "value"]) Object.defineProperty(Object.prototype, k, {set() { throw 4 }, get() { return "drop" }}); ` + ask, okOrThrown},
		"functions":          {`Function.prototype.call = Function.prototype.apply = () => { throw 5 }; ` + ask, okOrThrown},
		"maps":               {`Map.prototype.get = () => () => 1; Map.prototype.set = () => 0; ` + ask, okOrThrown + " limit_exceeded"},
		"string methods":     {`String.prototype.split = String.prototype.replace = () => { throw 6 }; ` + ask, okOrThrown},
		"another method":     {`export default async (i, env) => await env.KV.drop("x")`, "code_error"},
		"another binding":    {`export default async (i, env) => await env.DB.query("x")`, "code_error"},
		"a renamed method":   {`export default async (i, env) => { Object.defineProperty(env.KV.get, "name", {value: "drop"}); return await env.KV.get("x") }`, okOrThrown},
		"arguments that lie": {`export default async (i, env) => await env.KV.get({toJSON() { return undefined }}, {get x() { throw 1 }})`, okOrThrown},
		"a constructor":      {`export default (i, env) => env.KV.get.constructor("return typeof process + typeof require + typeof std + typeof os")()`, "ok code_error code_rejected"},
		"cyclic result":      {`export default () => { const a = {}; a.a = a; return a }`, okOrThrown},
		"deep result":        {`export default () => { let a = 0; for (let i = 0; i < 100000; i++) a = [a]; return a }`, "code_error limit_exceeded"},
		"endless getter":     {`export default () => ({ get x() { for (;;); } })`, "limit_exceeded"},
		"throws a proxy":     {`export default () => { throw new Proxy({}, { get() { throw 5 }, getPrototypeOf() { throw 6 } }) }`, "code_error"},
		"throws null":        {`export default () => { throw null }`, "code_error"},
		"huge message":       {`export default () => { throw new Error("x".repeat(8 << 20)) }`, "code_error limit_exceeded"},
		"endless stack":      {`export default () => { const e = new Error("x"); Object.defineProperty(e, "stack", {get() { for (;;); }}); throw e }`, "code_error limit_exceeded"},
		"deep JSON":          {`export default () => JSON.parse("[".repeat(1 << 20))`, "code_error limit_exceeded"},
		"deep source":        {`export default () => eval("(".repeat(1 << 18) + ")".repeat(1 << 18))`, "code_error limit_exceeded"},
		"deep recursion":     {`export default () => { const f = () => f() + 1; return f() }`, "code_error limit_exceeded"},
		"huge array":         {`export default () => new Array(4294967295).fill(0).length`, "limit_exceeded code_error"},
		"waits on memory":    {`export default () => Atomics.wait(new Int32Array(new SharedArrayBuffer(8)), 0, 0, 1e9)`, "code_error limit_exceeded"},
	}
	pool := newPool(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := &host{}
			res, err := pool.Run(t.Context(), script("hostile", tt.code), h)
			if err != nil {
				t.Fatal(err)
			}
			kind := res.Status
			if res.Error != nil {
				kind = res.Error.Kind
				if len(res.Error.Message) > 64<<10 || len(res.Error.Stack) > 64<<10 || strings.Contains(res.Error.Stack, "/root") {
					t.Errorf("an error of %d and %d bytes: %.200s", len(res.Error.Message), len(res.Error.Stack), res.Error.Stack)
				}
			}
			if !strings.Contains(" "+tt.want+" ", " "+kind+" ") {
				t.Errorf("got %s %.100s %+v, want one of %s", kind, res.Value, res.Error, tt.want)
			}
			if len(h.wrong) > 0 {
				t.Errorf("the host was asked for %q", h.wrong)
			}
			next := &host{}
			res, err = pool.Run(t.Context(), script("next", `export default async (i, env) => [await env.KV.get("x"), [1].map(x => x + 1)]`), next)
			if err != nil || res.Status != isolate.StatusOK || string(res.Value) != `["feathers",[2]]` || next.calls != 1 {
				t.Errorf("the next run: %+v, %v", res, err)
			}
		})
	}
	if s := pool.Stats(); s.Running != 0 {
		t.Errorf("%d runs are still under way", s.Running)
	}
}

// Nothing of a run is there in the next one, whatever it was kept in.
func TestScriptsLeaveNothing(t *testing.T) {
	pool := newPool(t)
	const leave = `globalThis.canary = "feathers"; Object.prototype.canary = "feathers"; Array.prototype.canary = "feathers";
Symbol.for("canary").description; console.canary = "feathers"; Math.canary = "feathers";
const big = new Uint8Array(1 << 20); for (let i = 0; i < big.length; i += 8) big.set([102, 101, 97, 116, 104, 101, 114, 115], i);
export default (i, env) => {
	for (const o of [env, env.KV, i]) try { o.canary = "feathers" } catch {} // frozen, or null
	return big.length }`
	const look = `export default (i, env) => {
	const found = [];
	for (const [name, o] of Object.entries({globalThis, plain: {}, array: [], console, Math, env, KV: env.KV})) if ("canary" in o) found.push(name);
	const fresh = new Uint8Array(4 << 20);
	if (fresh.some(x => x !== 0)) found.push("memory");
	return found }`
	for range 5 {
		for code, want := range map[string]string{leave: "1048576", look: "[]"} {
			r := script("tenant", code)
			r.Limits.CPU, r.Limits.Wall = time.Minute, time.Minute // slow machines fill slowly
			res, err := pool.Run(t.Context(), r, &host{})
			if err != nil || res.Status != isolate.StatusOK {
				t.Fatalf("%+v, %v", res, err)
			}
			if string(res.Value) != want {
				t.Errorf("got %s, want %s", res.Value, want)
			}
		}
	}
}
