package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

func jsFunction(code string) *api.FunctionRequest {
	return &api.FunctionRequest{Language: "js", Code: code}
}

func deploy(t *testing.T, d *testDaemon, tenant, name string, r *api.FunctionRequest) *api.Function {
	t.Helper()
	f, err := d.api.Deploy(within(t), tenant, name, "", r)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func invoke(t *testing.T, d *testDaemon, tenant, name string, inv *api.InvokeRequest) *api.Run {
	t.Helper()
	r, err := d.api.Invoke(within(t), tenant, name, inv)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantResult(t *testing.T, r *api.Run, want string) {
	t.Helper()
	if r.Status != api.StatusOK || string(r.Result) != want {
		t.Fatalf("%s: %s, %+v; want %s", r.Status, r.Result, r.Error, want)
	}
}

func TestFunction(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := jsFunction(`let n = 0; export default (input, env) => { console.log('hi'); n++; return [n, input, env.A, env.B]; }`)
	req.Env = map[string]string{"A": "1", "B": "1"}
	f := deploy(t, d, "t-a", "f", req)
	if !f.Snapshot || f.SnapshotReason != "" || f.Language != "js" || len(f.CodeSHA256) != 64 || f.Created.IsZero() || f.Size == 0 || f.Invocations != 0 {
		t.Errorf("deployed as %+v", f)
	}
	for range 2 {
		r := invoke(t, d, "t-a", "f", &api.InvokeRequest{Input: json.RawMessage("5"), Env: map[string]string{"B": "2"}})
		wantResult(t, r, `[1,5,"1","2"]`)
		if r.Function != "f" || r.CodeSHA256 != f.CodeSHA256 || r.Receipt == nil || r.Environment != "isolate" || len(r.Logs) != 1 || r.Phase != "finished" || r.Language != "js" {
			t.Errorf("its record is %+v", r)
		}
	}
	got, err := d.api.Function(ctx, "t-a", "f")
	if err != nil || got.Invocations != 2 || got.LastUsed.IsZero() || got.CodeSHA256 != f.CodeSHA256 {
		t.Errorf("afterwards %+v, %v", got, err)
	}
	list, err := d.api.Functions(ctx, "t-a")
	if err != nil || len(list.Functions) != 1 || list.Functions[0] != *got {
		t.Errorf("list %+v, %v", list, err)
	}
	// Other tenants have none of it.
	if _, err := d.api.Function(ctx, "t-b", "f"); err == nil {
		t.Error("another tenant sees it")
	}
	_, err = d.api.Invoke(ctx, "t-b", "f", &api.InvokeRequest{})
	wantError(t, err, api.CodeNotFound, "function")
	for range 2 {
		if err := d.api.DeleteFunction(ctx, "t-a", "f"); err != nil {
			t.Error(err)
		}
	}
	_, err = d.api.Invoke(ctx, "t-a", "f", &api.InvokeRequest{})
	wantError(t, err, api.CodeNotFound, "function")
}

func TestFunctionStreamsAndFollows(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	deploy(t, d, "t-a", "f", jsFunction(`export default async (input, env) => { console.log('a'); return (await env.search.find(input)).n; }`))
	var types []string
	for e, err := range d.api.InvokeStream(ctx, "t-a", "f", &api.InvokeRequest{Input: json.RawMessage(`"q"`), RunID: "mine"}) {
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, e.Type)
		if e.Type == api.EventCall {
			if err := d.api.AnswerCall(ctx, e.RunID, e.Call.CallID, &api.ToolAnswer{Result: json.RawMessage(`{"n":7}`)}); err != nil {
				t.Error(err)
			}
		}
		if e.Type == api.EventResult {
			wantResult(t, e.Run, "7")
		}
	}
	if got := strings.Join(types, " "); got != "started log call result" {
		t.Errorf("events: %s", got)
	}
	// The same id again returns, also after another deployment; another call
	// with it is a conflict.
	deploy(t, d, "t-a", "f", jsFunction(`export default () => 8`))
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{Input: json.RawMessage(`"q"`), RunID: "mine"}), "7")
	_, err := d.api.Invoke(ctx, "t-a", "f", &api.InvokeRequest{RunID: "mine"})
	wantError(t, err, api.CodeConflict, "run_id")
	if err := d.api.DeleteFunction(ctx, "t-a", "f"); err != nil {
		t.Fatal(err)
	}
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{Input: json.RawMessage(`"q"`), RunID: "mine"}), "7")
	_, err = d.api.Invoke(ctx, "t-a", "f", &api.InvokeRequest{RunID: "other"})
	wantError(t, err, api.CodeNotFound, "function")
}

// A new deployment is whole: runs under way end on the old one, what follows is
// the new one, also for one that is deleted.
func TestDeployDuringCalls(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	waiting := `export default async (input, env) => { const x = await env.search.find(1); return [VERSION, x]; }`
	deploy(t, d, "t-a", "f", jsFunction("const VERSION = 1;"+waiting))
	calls := make(chan *api.ToolCall)
	results := make(chan string)
	start := func() {
		go func() {
			for e, err := range d.api.InvokeStream(ctx, "t-a", "f", &api.InvokeRequest{}) {
				switch {
				case err != nil:
					results <- err.Error()
				case e.Type == api.EventCall:
					e.Call.CallID = e.RunID + "/" + e.Call.CallID
					calls <- e.Call
				case e.Type == api.EventResult:
					results <- string(e.Run.Result)
				}
			}
		}()
	}
	answer := func(c *api.ToolCall) {
		run, id, _ := strings.Cut(c.CallID, "/")
		if err := d.api.AnswerCall(ctx, run, id, &api.ToolAnswer{Result: json.RawMessage("0")}); err != nil {
			t.Error(err)
		}
	}
	start()
	first := <-calls
	deploy(t, d, "t-a", "f", jsFunction("const VERSION = 2;"+waiting))
	start()
	second := <-calls
	if err := d.api.DeleteFunction(ctx, "t-a", "f"); err != nil {
		t.Error(err)
	}
	answer(first)
	if got := <-results; got != "[1,0]" {
		t.Errorf("the run before: %s", got)
	}
	answer(second)
	if got := <-results; got != "[2,0]" {
		t.Errorf("the run after: %s", got)
	}
}

func TestDeployFaults(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	for _, tc := range []struct {
		name, tenant, function string
		req                    api.FunctionRequest
		code, field            string
		line                   int
	}{
		{"syntax", "t-a", "f", api.FunctionRequest{Language: "js", Code: "const a = 1;\nconst = 2"}, api.CodeRejected, "", 2},
		{"typescript", "t-a", "f", api.FunctionRequest{Language: "ts", Modules: map[string]string{"a.ts": "let x: = 1"}, Main: "a.ts"}, api.CodeRejected, "", 1},
		{"no export", "t-a", "f", api.FunctionRequest{Language: "js", Code: "export const a = 1"}, api.CodeRejected, "", 0},
		{"throws", "t-a", "f", api.FunctionRequest{Language: "js", Code: "throw new Error('x'); export default () => 1"}, api.CodeError, "", 1},
		{"loops", "t-a", "f", api.FunctionRequest{Language: "js", Code: "for (;;); export default () => 1", Limits: &policy.Limits{CPU: policy.Duration(100 * time.Millisecond)}}, api.CodeLimit, "", 0},
		{"no code", "t-a", "f", api.FunctionRequest{Language: "js"}, api.CodeInvalidRequest, "code", 0},
		{"shell", "t-a", "f", api.FunctionRequest{Language: "shell", Code: "ls"}, api.CodeInvalidRequest, "language", 0},
		{"size", "t-a", "f", api.FunctionRequest{Language: "js", Code: "export default () => 1;" + strings.Repeat(" ", 1<<20)}, api.CodeLimit, "modules", 0},
		{"name", "t-a", "a b", api.FunctionRequest{Language: "js", Code: "export default () => 1"}, api.CodeInvalidRequest, "function", 0},
		{"limits", "t-a", "f", api.FunctionRequest{Language: "js", Code: "export default () => 1", Limits: &policy.Limits{Wall: policy.Duration(time.Hour)}}, api.CodeInvalidRequest, "limits.wall", 0},
		{"binding", "t-a", "f", api.FunctionRequest{Language: "js", Code: "export default () => 1", Bindings: map[string]api.BindingRequest{"x": {}}}, api.CodeDenied, "bindings.x", 0},
		{"host", "t-a", "f", api.FunctionRequest{Language: "js", Code: "export default () => 1", Outbound: &api.Outbound{Allow: []string{"x.example"}}}, api.CodeDenied, "outbound.allow[0]", 0},
		{"no isolate", "t-short", "f", api.FunctionRequest{Language: "js", Code: "export default () => 1"}, api.CodeDenied, "", 0},
		{"language", "t-isolates", "f", api.FunctionRequest{Language: "ts", Code: "export default () => 1"}, api.CodeDenied, "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := d.api.Deploy(ctx, tc.tenant, tc.function, "", &tc.req)
			e := wantError(t, err, tc.code, tc.field)
			if tc.line > 0 && (e.Position == nil || e.Position.Line != tc.line) {
				t.Errorf("position %+v, want line %d", e.Position, tc.line)
			}
			if list, err := d.api.Functions(ctx, "t-a"); err != nil || len(list.Functions) != 0 {
				t.Errorf("something is deployed: %+v, %v", list, err)
			}
		})
	}
}

func TestDeployReplaces(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	f, err := d.api.Deploy(ctx, "t-a", "f", "none", jsFunction(`export default () => 1`))
	if err != nil {
		t.Fatal(err)
	}
	for _, replaces := range []string{"none", strings.Repeat("0", 64)} {
		_, err = d.api.Deploy(ctx, "t-a", "f", replaces, jsFunction(`export default () => 2`))
		if e := wantError(t, err, api.CodeConflict, "replaces"); e.Used != f.CodeSHA256 {
			t.Errorf("it says %q is there", e.Used)
		}
	}
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{}), "1")
	if _, err := d.api.Deploy(ctx, "t-a", "f", f.CodeSHA256, jsFunction(`export default () => 2`)); err != nil {
		t.Fatal(err)
	}
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{}), "2")
}

// A call has at most what its deployment has, and what policy grants by then.
func TestInvokeHoldsAtMost(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := jsFunction(`export default (input, env) => Object.keys(env).sort()`)
	req.Bindings = map[string]api.BindingRequest{"KV": {}, "search": {}}
	req.Limits = &policy.Limits{CPU: policy.Duration(200 * time.Millisecond), Calls: 3}
	deploy(t, d, "t-a", "f", req)
	r := invoke(t, d, "t-a", "f", &api.InvokeRequest{})
	wantResult(t, r, `["KV","search"]`)
	if r.Usage.CPU.Limit != req.Limits.CPU {
		t.Errorf("the limit is %v", r.Usage.CPU.Limit)
	}
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{Bindings: map[string]api.BindingRequest{"kv": {}}}), `["KV"]`)
	for _, tc := range []struct {
		inv         api.InvokeRequest
		code, field string
	}{
		{api.InvokeRequest{Bindings: map[string]api.BindingRequest{"DB": {}}}, api.CodeDenied, "bindings.DB"},
		{api.InvokeRequest{Outbound: &api.Outbound{Allow: []string{"x.example"}}}, api.CodeDenied, "outbound.allow[0]"},
		{api.InvokeRequest{Limits: &policy.Limits{CPU: policy.Duration(300 * time.Millisecond)}}, api.CodeInvalidRequest, "limits.cpu"},
		{api.InvokeRequest{Env: map[string]string{"a=b": "1"}}, api.CodeInvalidRequest, `env["a=b"]`},
	} {
		r, err := d.api.Invoke(ctx, "t-a", "f", &tc.inv)
		if err == nil && r.Error != nil {
			err = r.Error
		}
		wantError(t, err, tc.code, tc.field)
	}
	// Policy is read at each call.
	less := strings.NewReplacer("search: {", "other: {", "cpu: 500ms", "cpu: 100ms").Replace(testPolicy)
	dir := d.cfg.StateDir
	d.stop(t)
	d, ctx = startDaemonIn(t, dir, less), within(t)
	r = invoke(t, d, "t-a", "f", &api.InvokeRequest{Bindings: map[string]api.BindingRequest{"kv": {}}})
	if r.Usage.CPU.Limit.Std() != 100*time.Millisecond {
		t.Errorf("the limit is %v, policy says 100ms", r.Usage.CPU.Limit)
	}
	r, err := d.api.Invoke(ctx, "t-a", "f", &api.InvokeRequest{})
	if err != nil || r.Status != api.StatusRefused || r.Error.Code != api.CodeDenied || r.Error.Field != "bindings.search" {
		t.Errorf("what policy grants no more: %+v, %v", r, err)
	}
}

func TestFunctionsOutliveTheDaemon(t *testing.T) {
	d := startDaemon(t)
	deploy(t, d, "t-a", "f", jsFunction(`export default () => 1`))
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{}), "1")
	dir := d.cfg.StateDir
	d.stop(t)
	d = startDaemonIn(t, dir, testPolicy)
	f, err := d.api.Function(within(t), "t-a", "f")
	if err != nil || f.Invocations != 1 || f.LastUsed.IsZero() || !f.Snapshot {
		t.Errorf("after the restart: %+v, %v", f, err)
	}
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{}), "1")
	// A file that was damaged is an error, and no other function's.
	path := filepath.Join(dir, "data", "t-a", "functions", "f.fn")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "=\\u003e 1", "=\\u003e 2", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = d.api.Invoke(within(t), "t-a", "f", &api.InvokeRequest{})
	if e := wantError(t, err, api.CodeInternal, ""); !strings.Contains(e.Message, "damaged") {
		t.Errorf("it says %q", e.Message)
	}
	deploy(t, d, "t-a", "f", jsFunction(`export default () => 3`))
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{}), "3")
}

// With the tenant's data its functions are gone, from memory, too.
func TestFunctionsGoWithTheTenantsData(t *testing.T) {
	d := startDaemon(t)
	deploy(t, d, "t-a", "f", jsFunction(`export default () => 1`))
	wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{}), "1")
	if err := d.data.RemoveTenant(within(t), "t-a"); err != nil {
		t.Fatal(err)
	}
	_, err := d.api.Invoke(within(t), "t-a", "f", &api.InvokeRequest{})
	wantError(t, err, api.CodeNotFound, "function")
	d.functions.save()
	if _, err := os.Lstat(filepath.Join(d.cfg.StateDir, "data", "t-a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is back: %v", err)
	}
}

func TestFunctionBounds(t *testing.T) {
	d := startDaemonWith(t, strings.Replace(testPolicy, "      fetch: true\n", "      fetch: true\n      functions: {count: 2, bytes: 4KiB}\n", 1))
	ctx := within(t)
	for i := range 2 {
		deploy(t, d, "t-a", fmt.Sprint("f", i), jsFunction(`export default () => 1`))
	}
	_, err := d.api.Deploy(ctx, "t-a", "f2", "", jsFunction(`export default () => 1`))
	if e := wantError(t, err, api.CodeLimit, ""); e.Limit != "functions" || e.Allowed != "2" {
		t.Errorf("one too many: %+v", e)
	}
	_, err = d.api.Deploy(ctx, "t-a", "f1", "", jsFunction(`export default () => '`+strings.Repeat("x", 4000)+`'`))
	if e := wantError(t, err, api.CodeLimit, ""); e.Limit != "function_bytes" {
		t.Errorf("too large: %+v", e)
	}
	deploy(t, d, "t-b", "f2", jsFunction(`export default () => 1`))
}

// Deployments and calls of one name at the same time: each call has one or the
// other, whole.
func TestDeployRace(t *testing.T) {
	d := startDaemon(t)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	source := func(n int) *api.FunctionRequest {
		return &api.FunctionRequest{Language: "js", Main: "main.js", Modules: map[string]string{
			"main.js": fmt.Sprintf("import { b } from './b.js'; export default () => [%d, b];", n),
			"b.js":    fmt.Sprintf("export const b = %d;", n)}}
	}
	deploy(t, d, "t-a", "f", source(0))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				r, err := d.api.Invoke(ctx, "t-a", "f", &api.InvokeRequest{})
				if ctx.Err() != nil {
					return
				}
				var got []int
				if err != nil || json.Unmarshal(r.Result, &got) != nil || len(got) != 2 || got[0] != got[1] {
					t.Errorf("%s, %v", r.Result, err)
					return
				}
			}
		})
	}
	for i := range 30 {
		deploy(t, d, "t-a", "f", source(i))
		wantResult(t, invoke(t, d, "t-a", "f", &api.InvokeRequest{}), fmt.Sprintf("[%d,%d]", i, i))
	}
	cancel()
	wg.Wait()
}
