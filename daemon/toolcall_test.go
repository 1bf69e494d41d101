package daemon

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/service"
	"sandboxd/policy"
)

// toolPolicy has tools of the caller's and of a service at socket.
func toolPolicy(socket string) string {
	return `version: 1
callers:
  - {uid: 0, tenants: ["t-*"]}
profiles:
  all:
    isolate:
      languages: [js]
      limits: {wall: 20s, cpu: 1s, calls: 100}
      bindings:
        search:
          type: tools
          methods:
            find:
              args: {type: object, required: [q], properties: {q: {type: string}, limit: {type: integer, maximum: 9}}}
              result: {type: array, items: {type: string}}
            free:
        desk:
          type: tools
          socket: ` + socket + `
          timeout: 5s
          methods:
            find: {args: {type: array, prefixItems: [{type: string}, {type: number}], minItems: 2}, result: {type: object, required: [ok]}}
            slow:
            echo:
            fail:
        gone: {type: tools, socket: ` + socket + `.none, methods: [m]}
tenants:
  "t-*": {profile: all}
`
}

// A desk is a service on a socket.
type desk struct {
	mu      sync.Mutex
	calls   []service.Call
	waiting int
	most    int
	changed chan struct{} // closed when waiting falls
	meet    chan struct{}
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c service.Call
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	d.calls = append(d.calls, c)
	d.mu.Unlock()
	switch c.Method {
	case "find":
		fmt.Fprint(w, `{"result":{"secret":1}}`)
	case "fail":
		fmt.Fprint(w, `{"error":{"message":"no such order"}}`)
	case "slow":
		d.slow(w, r, &c)
	default:
		fmt.Fprintf(w, `{"result":%s}`, c.Args)
	}
}

// slow answers when as many are there as its argument says, or never.
func (d *desk) slow(w http.ResponseWriter, r *http.Request, c *service.Call) {
	var args []int
	_ = json.Unmarshal(c.Args, &args)
	d.mu.Lock()
	d.waiting++
	d.most = max(d.most, d.waiting)
	if len(args) > 0 && d.waiting == args[0] {
		close(d.meet)
	}
	meet := d.meet
	d.mu.Unlock()
	select {
	case <-meet:
		fmt.Fprint(w, `{"result":"met"}`)
	case <-r.Context().Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting--
	close(d.changed)
	d.changed = make(chan struct{})
}

func startDesk(t *testing.T) (*desk, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "desk.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{changed: make(chan struct{}), meet: make(chan struct{})}
	s := &http.Server{Handler: d}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return d, path
}

// answering runs code and answers its calls of the caller's tools.
func answering(t *testing.T, d *testDaemon, req *api.RunRequest, answer func(*api.ToolCall) *api.ToolAnswer) *api.Run {
	t.Helper()
	ctx := within(t)
	for e, err := range d.api.RunStream(ctx, "t-a", req) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Type {
		case api.EventCall:
			if err := d.api.AnswerCall(ctx, e.RunID, e.Call.CallID, answer(e.Call)); err != nil {
				t.Fatal(err)
			}
		case api.EventResult:
			return e.Run
		}
	}
	t.Fatal("no result")
	return nil
}

const caught = `const caught = async (f) => { try { return await f() } catch (e) { return e.name + ": " + e.message } };
`

func TestToolsAndSchemas(t *testing.T) {
	desk, socket := startDesk(t)
	d := startDaemonWith(t, toolPolicy(socket))
	calls := 0
	hit := func(c *api.ToolCall) *api.ToolAnswer {
		calls++
		if strings.Contains(string(c.Args), "bad") {
			return &api.ToolAnswer{Result: json.RawMessage(`["ok", {"hidden": 7}]`)}
		}
		return &api.ToolAnswer{Result: json.RawMessage(`["hit"]`)}
	}
	for _, tt := range []struct {
		name, code string
		methods    string // of search, in the request
		want       string
		status     string // of the only call
		seen       int    // calls that reached somebody
	}{
		{"good", `env.search.find({q: "x", limit: 3})`, "", `["hit"]`, "ok", 1},
		{"wrong type", `env.search.find({q: "x", limit: "ten"})`, "", `"BindingError: search.find: argument.limit is the string \"ten\"; must be an integer"`, "invalid_args", 0},
		{"nothing", `env.search.find()`, "", `"BindingError: search.find: argument lacks \"q\""`, "invalid_args", 0},
		{"two", `env.search.find({q: "x"}, 2)`, "", `"BindingError: search.find takes one argument, and 2 came"`, "invalid_args", 0},
		{"wrong result", `env.search.find({q: "bad"})`, "", `its service gave a result that breaks its own schema (result[1] must be a string)"`, "invalid_result", 1},
		{"no schema", `env.search.free(1, [2])`, "", `["hit"]`, "ok", 1},
		{"of the request", `env.search.free(1)`, `{"free": {"args": {"type": "string"}}}`, `argument is the number 1; must be a string"`, "invalid_args", 0},
		{"beside the policy's", `env.search.find({q: "x", limit: 8})`, `{"find": {"args": {"properties": {"limit": {"maximum": 5}}}}}`, `argument.limit is the number 8; maximum`, "invalid_args", 0},
		{"the policy's beside it", `env.search.find({q: "x", limit: 10})`, `{"find": {"args": true}}`, `argument.limit is the number 10; maximum`, "invalid_args", 0},
		{"result of the request", `env.search.free()`, `{"free": {"result": {"type": "object"}}}`, `must be an object`, "invalid_result", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := js(caught + "export default (_, env) => caught(() => " + tt.code + ")")
			if tt.methods != "" {
				m := new(api.Methods)
				if err := json.Unmarshal([]byte(tt.methods), m); err != nil {
					t.Fatal(err)
				}
				req.Bindings = map[string]api.BindingRequest{"search": {Methods: m}}
			}
			calls = 0
			r := answering(t, d, req, hit)
			if !strings.Contains(string(r.Result), tt.want) || strings.Contains(string(r.Result), "hidden") {
				t.Errorf("got %s %+v, want %s", r.Result, r.Error, tt.want)
			}
			if len(r.Calls) != 1 || r.Calls[0].Status != tt.status || (r.Calls[0].Error == "") != (tt.status == "ok") {
				t.Errorf("on record: %+v", r.Calls)
			}
			if calls != tt.seen {
				t.Errorf("%d calls reached the caller, want %d", calls, tt.seen)
			}
		})
	}
	t.Run("uncaught", func(t *testing.T) {
		r := answering(t, d, js("export default async (_, env) => {\n  await env.search.find({})\n}"), hit)
		if r.Error == nil || r.Error.Code != api.CodeBinding || r.Error.Position == nil || r.Error.Position.Line != 2 {
			t.Errorf("got %+v", r.Error)
		}
	})
	t.Run("faults of the request", func(t *testing.T) {
		for _, tt := range []struct {
			methods, code, field string
		}{
			{`{"find":{"args":{"type":"strin"}}}`, api.CodeInvalidRequest, "bindings.search.methods.find.args.type"},
			{`{"find":{"args":{"$ref":"https://example.com/"}}}`, api.CodeInvalidRequest, "bindings.search.methods.find.args"},
			{`{"find":{"arg":{}}}`, api.CodeInvalidRequest, "bindings.search.methods.find.arg"},
			{`{"drop":{}}`, api.CodeDenied, "bindings.search.methods.drop"},
			{`["find",7]`, api.CodeInvalidRequest, "bindings.search.methods[1]"},
			{`"find"`, api.CodeInvalidRequest, "bindings.search.methods"},
		} {
			status, text := post(t, d, "/v1/tenants/t-a/run", `{"language":"js","code":"1","bindings":{"search":{"methods":`+tt.methods+`}}}`)
			var body api.ErrorBody
			if err := json.Unmarshal([]byte(text), &body); err != nil || body.Error == nil || body.Error.Code != tt.code || body.Error.Field != tt.field {
				t.Errorf("%s: got %d %s, want %s at %s", tt.methods, status, text, tt.code, tt.field)
			}
		}
	})
	t.Run("a service", func(t *testing.T) {
		r, err := d.api.Run(within(t), "t-a", js(caught+`export default async (_, env) => [await env.desk.echo("a", {b: [1]}), await caught(() => env.desk.fail()),
			await caught(() => env.desk.find("x")), await caught(() => env.desk.find("x", "y")), await caught(() => env.desk.find("x", 1)), await caught(() => env.gone.m())]`))
		want := `[["a",{"b":[1]}],"BindingError: no such order","BindingError: desk.find: arguments minItems: got 1, want 2",` +
			`"BindingError: desk.find: arguments[1] is the string \"y\"; must be a number",` +
			`"BindingError: desk.find failed through no fault of this code: its service gave a result that breaks its own schema (result lacks \"ok\")",` +
			`"BindingError: gone.m failed through no fault of this code: its service is not running; the operator has to start it (the daemon's log names its socket)"]`
		if err != nil || string(r.Result) != want {
			t.Errorf("got %s %+v %v\nwant %s", r.Result, r.Error, err, want)
		}
		desk.mu.Lock()
		defer desk.mu.Unlock()
		if len(desk.calls) != 3 || desk.calls[0].Tenant != "t-a" || desk.calls[0].RunID != r.RunID || desk.calls[0].Binding != "desk" || desk.calls[0].ID == desk.calls[1].ID {
			t.Errorf("it saw %+v", desk.calls)
		}
		if strings.Contains(string(r.Result), socket) {
			t.Error("the code sees the socket's path")
		}
	})
}

// TestCallsOverlapAndEnd: Promise.all overlaps up to 16 calls, more wait, and
// nothing goes on after the run.
func TestCallsOverlapAndEnd(t *testing.T) {
	desk, socket := startDesk(t)
	d := startDaemonWith(t, strings.Replace(toolPolicy(socket), "timeout: 5s", "timeout: 15s\n          concurrency: 64", 1))
	t.Run("forty at once", func(t *testing.T) {
		// They answer when 16 are there: if fewer ran at once, none would.
		r, err := d.api.Run(within(t), "t-a", js(`export default async (_, env) => (await Promise.all(Array.from({length: 40}, () => env.desk.slow(16)))).length`))
		if err != nil || string(r.Result) != "40" || len(r.Calls) != 40 {
			t.Errorf("got %s %+v, %v", r.Result, r.Error, err)
		}
		desk.mu.Lock()
		defer desk.mu.Unlock()
		if desk.most != maxConcurrentCalls {
			t.Errorf("%d calls were under way at once, want %d", desk.most, maxConcurrentCalls)
		}
	})
	desk.mu.Lock()
	desk.meet = make(chan struct{})
	desk.mu.Unlock()
	// idle waits until the service works for nobody.
	idle := func(t *testing.T) {
		t.Helper()
		for ctx := within(t); ; {
			desk.mu.Lock()
			n, changed := desk.waiting, desk.changed
			desk.mu.Unlock()
			if n == 0 {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatal("the service still works for a run that has ended")
			}
		}
	}
	for name, tt := range map[string]struct {
		code   string
		limits *policy.Limits
		status string
		want   string
		calls  int
	}{
		"nobody awaits":      {`export default (_, env) => { env.desk.slow(); return 1 }`, nil, api.StatusOK, "1", 1},
		"the code throws":    {`export default (_, env) => { env.desk.slow(); throw new Error("x") }`, nil, api.StatusError, "", 1},
		"wall time":          {`export default (_, env) => Promise.all([env.desk.slow(), env.desk.slow()])`, &policy.Limits{Wall: policy.Duration(300 * time.Millisecond)}, api.StatusKilled, "", 2},
		"a signal":           {`export default async (_, env) => { const c = new AbortController(); setTimeout(() => c.abort(), 20); try { await env.desk.slow({signal: c.signal}) } catch (e) { return e.name } }`, nil, api.StatusOK, `"AbortError"`, 1},
		"a signal by itself": {`export default async (_, env) => { try { await env.desk.slow(AbortSignal.timeout(20)) } catch (e) { return e.name } }`, nil, api.StatusOK, `"TimeoutError"`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			req := js(tt.code)
			req.Limits = tt.limits
			r, err := d.api.Run(within(t), "t-a", req)
			if err != nil || r.Status != tt.status || string(r.Result) != tt.want {
				t.Errorf("got %s %s %+v, %v", r.Status, r.Result, r.Error, err)
			}
			idle(t)
			if len(r.Calls) != tt.calls || r.Calls[0].Status != "canceled" {
				t.Errorf("on record: %+v", r.Calls)
			}
		})
	}
	t.Run("a loop of refused calls", func(t *testing.T) {
		desk.mu.Lock()
		began := len(desk.calls)
		desk.mu.Unlock()
		r, err := d.api.Run(within(t), "t-a", js(`export default async (_, env) => { for (;;) try { await env.desk.find() } catch {} }`))
		desk.mu.Lock()
		defer desk.mu.Unlock()
		if err != nil || r.Error == nil || r.Error.Limit != "calls" || len(desk.calls) != began {
			t.Errorf("got %+v, %v", r.Error, err)
		}
	})
	t.Run("a million promises", func(t *testing.T) {
		r, err := d.api.Run(within(t), "t-a", js(`export default async (_, env) => { const all = []; for (let i = 0; i < 1e6; i++) all.push(env.desk.slow().catch(() => 0)); await Promise.all(all) }`))
		if err != nil || r.Error == nil || r.Error.Limit != "calls" {
			t.Errorf("got %+v, %v", r.Error, err)
		}
		idle(t)
	})
}
