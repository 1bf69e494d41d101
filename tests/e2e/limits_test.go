package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// An endless is code that goes past a limit, in each language that has a way to.
type endless struct {
	limit  string
	limits policy.Limits
	in     map[string]string // by language: the body of the function, or a module in base64
	input  string
}

var millisecond = policy.Duration(time.Millisecond)

func endlessCode() []endless {
	wasm := func(b []byte) string { return base64Of(b) }
	return []endless{
		{"cpu", policy.Limits{CPU: 50 * millisecond}, map[string]string{
			"js": `for (;;);`, "ts": `for (let n: number = 0; ; n++);`, "python": "while True: pass", "wasm": wasm(harness.WasmLoop())}, ""},
		{"wall", policy.Limits{Wall: 300 * millisecond}, map[string]string{
			"js": `return new Promise((done) => setTimeout(done, 1e6))`, "ts": `return new Promise<void>((done) => setTimeout(done, 1e6))`,
			"python": "import time; time.sleep(1000)", "wasm": wasm(harness.WasmLoop())}, ""},
		{"memory", policy.Limits{Memory: 32 << 20}, map[string]string{
			"js": `const a = []; for (;;) a.push(new Uint8Array(1e6))`, "ts": `const a: unknown[] = []; for (;;) a.push(new Uint8Array(1e6))`,
			"python": "a = []\n    while True: a.append(bytearray(1000000))", "wasm": wasm(harness.WasmGrow())}, ""},
		{"output", policy.Limits{Output: 10_000}, map[string]string{
			"js": `for (;;) console.log('x'.repeat(100))`, "ts": `for (;;) console.log('x'.repeat(100))`,
			"python": "while True: print('x' * 100)", "wasm": wasm(harness.WasmCat())}, fmt.Sprintf("%q", strings.Repeat("x", 20_000))},
		{"lines", policy.Limits{}, map[string]string{
			"js": `for (;;) console.log('')`, "ts": `for (;;) console.log('')`, "python": "while True: env.LOG.info('')", "wasm": wasm(harness.WasmLog())}, ""},
		{"calls", policy.Limits{Calls: 3}, map[string]string{
			"js": `for (;;) await env.KV.get('x')`, "ts": `for (;;) await env.KV.get('x')`, "python": "while True: env.KV.get('x')", "wasm": wasm(harness.WasmCalls())}, `{"binding":"KV","method":"get","args":["x"]}`},
		{"requests", policy.Limits{Requests: 1}, map[string]string{
			"js": `for (;;) await fetch('https://` + harness.OtherHost + `/v1/x')`, "ts": `for (;;) await fetch('https://` + harness.OtherHost + `/v1/x')`,
			"python": "while True: fetch('https://" + harness.OtherHost + "/v1/x')", "wasm": wasm(harness.WasmCalls())},
			`{"binding":"fetch","method":"fetch","args":[{"url":"https://` + harness.OtherHost + `/v1/x","method":"GET","headers":[]}]}`},
		{"result", policy.Limits{}, map[string]string{
			"js": `return 'x'.repeat(20 << 20)`, "ts": `return 'x'.repeat(20 << 20)`, "python": "return 'x' * (20 << 20)", "wasm": wasm(harness.WasmResult(20 << 20))}, ""},
		{"stack", policy.Limits{}, map[string]string{
			"js": `const f = () => f() + 1; return f()`, "ts": `const f = (): number => f() + 1; return f()`,
			"python": "f = lambda: f()\n    f()", "wasm": wasm(harness.WasmNest())}, ""},
		{"timers", policy.Limits{}, map[string]string{
			"js": `for (;;) setTimeout(() => {}, 1e6)`, "ts": `for (;;) setTimeout(() => {}, 1e6)`}, ""},
	}
}

// whole makes a program of a function's body.
func whole(language, body string) string {
	switch language {
	case "python":
		return "def main(input, env):\n    " + body + "\n"
	case "wasm":
		return body
	}
	return "export default async function (input, env) { " + body + " }"
}

// TestLimits: whatever the language, and whether the code was deployed or not,
// each limit ends the run, and the answer names it, what was used and what is
// allowed.
func TestLimits(t *testing.T) {
	who := tenant(t, harness.AmplePrefix)
	outbound := &api.Outbound{Allow: []string{harness.OtherHost}}
	for _, e := range endlessCode() {
		for language, body := range e.in {
			t.Run(e.limit+" "+language, func(t *testing.T) {
				req := api.RunRequest{Language: language, Code: whole(language, body), Limits: &e.limits, Bindings: bindings("KV", "LOG")}
				if e.limit == "requests" {
					req.Outbound = outbound
				}
				if e.input != "" {
					req.Input = json.RawMessage(e.input)
				}
				r := run(t, who, req)
				wantLimit(t, &r, e.limit)
				f := api.FunctionRequest{Language: language, Code: req.Code, Bindings: req.Bindings, Outbound: req.Outbound, Limits: req.Limits}
				deploy(t, who, "endless", f)
				r = invoke(t, who, "endless", api.InvokeRequest{Input: req.Input})
				wantLimit(t, &r, e.limit)
			})
		}
	}
	for _, language := range []string{"js", "ts", "python"} {
		t.Run("code "+language, func(t *testing.T) {
			code := whole(language, "return 1") + map[string]string{"python": "# "}[language] + strings.Repeat(" ", 1<<20)
			for path, req := range map[string]any{
				"POST " + tenantPath(who) + "/run":      api.RunRequest{Language: language, Code: code},
				"PUT " + functionPath(who, "too-large"): api.FunctionRequest{Language: language, Code: code},
			} {
				method, to, _ := strings.Cut(path, " ")
				if err := do(t, method, to, req).Error(); err == nil || err.Code != api.CodeLimit || err.Limit != "code" || err.Used == "" || err.Allowed != "1048576" {
					t.Errorf("%s: %+v", path, err)
				}
			}
		})
	}
}

func wantLimit(t *testing.T, r *api.Run, limit string) {
	t.Helper()
	e := r.Error
	if r.Status != api.StatusKilled || e == nil || e.Code != api.CodeLimit || e.Limit != limit || e.Used == "" || e.Allowed == "" || e.Used == e.Allowed && !slices.Contains([]string{"wall", "cpu", "stack"}, limit) {
		t.Fatalf("%s, %+v", r.Status, e)
	}
	// The work is measured in the thread's own time. The wall is the machine's,
	// which may be busy.
	u := &r.Usage
	if u.CPU.Used == nil || time.Duration(*u.CPU.Used) > time.Duration(u.CPU.Limit)+100*time.Millisecond {
		t.Errorf("cpu %v of %v", u.CPU.Used, u.CPU.Limit)
	}
	if u.Wall.Used == nil || time.Duration(*u.Wall.Used) > time.Duration(u.Wall.Limit)+harness.Scale(2*time.Second) {
		t.Errorf("wall %v of %v", u.Wall.Used, u.Wall.Limit)
	}
}
