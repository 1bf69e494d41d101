package daemon

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/isolate"
	"sandboxd/policy"
)

func js(code string) *api.RunRequest { return &api.RunRequest{Language: "js", Code: code} }

func TestRunInIsolate(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	t.Run("result, logs, usage and receipt", func(t *testing.T) {
		req := js(`export default async (input, env) => { env.LOG.info("seen", {n: input.n}); return input.n * 2 }`)
		req.Input = json.RawMessage(`{"n":21}`)
		r, err := d.api.Run(ctx, "t-a", req)
		if err != nil {
			t.Fatal(err)
		}
		if r.Status != api.StatusOK || string(r.Result) != "42" || r.Environment != "isolate" || r.Phase != "finished" || r.Receipt == nil || r.CodeSHA256 == "" {
			t.Errorf("got %+v", r)
		}
		if len(r.Logs) != 1 || r.Logs[0].Message != "seen" || string(r.Logs[0].Data) != `{"n":21}` {
			t.Errorf("logs are %+v", r.Logs)
		}
		if *r.Usage.CPU.Used <= 0 || r.Usage.CPU.Limit != policy.Duration(500*time.Millisecond) || *r.Usage.MemoryPeak.Used <= 0 {
			t.Errorf("usage is %+v", r.Usage)
		}
		kept, err := d.api.GetRun(ctx, r.RunID)
		if err != nil || string(kept.Result) != "42" {
			t.Errorf("the record is %+v, %v", kept, err)
		}
	})
	t.Run("data of the tenant's own", func(t *testing.T) {
		if _, err := d.api.ExecSQL(ctx, "t-a", &api.SQLRequest{SQL: "create table n (v integer, s text)"}); err != nil {
			t.Fatal(err)
		}
		done, err := d.api.ExecSQL(ctx, "t-a", &api.SQLRequest{SQL: "insert into n values (?, ?)", Params: []json.RawMessage{json.RawMessage("7"), json.RawMessage(`"x"`)}})
		if err != nil || done.Changes != 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		code := `export default async (_, env) => {
			await env.KV.put("k", {deep: [1]});
			return [await env.DB.query("select v, s from n where v = ?", 7), await env.DB.query("select v from n where s = ?", ["x"]),
				await env.KV.get("k"), await env.KV.list(), await env.KV.delete("k"), await env.KV.get("k")];
		}`
		r, err := d.api.Run(ctx, "t-a", js(code))
		if err != nil {
			t.Fatal(err)
		}
		if want := `[[{"s":"x","v":7}],[{"v":7}],{"deep":[1]},["k"],true,null]`; string(r.Result) != want {
			t.Errorf("got %s %+v, want %s", r.Result, r.Error, want)
		}
		if len(r.Calls) != 7 || r.Calls[0].Binding != "KV" || r.Calls[0].Status != "ok" || r.Phase != "finished" {
			t.Errorf("calls are %+v", r.Calls)
		}
		other, err := d.api.Run(ctx, "t-b", js(code))
		if err != nil || other.Status != api.StatusError || !strings.Contains(other.Error.Message, "no such table") {
			t.Errorf("another tenant got %+v, %v", other, err)
		}
	})
	t.Run("bytes in keys and rows", func(t *testing.T) {
		r, err := d.api.Run(ctx, "t-a", js(`export default async (_, env) => {
			await env.KV.put("b", {data: new Uint8Array([0, 255])});
			const [row] = await env.DB.query("select ? as b, length(?1) as n", new Uint8Array([1, 2, 3]));
			const {data} = await env.KV.get("b");
			return [data instanceof Uint8Array, data, row.b instanceof Uint8Array, row];
		}`))
		if want := `[true,{"$bytes":"AP8="},true,{"b":{"$bytes":"AQID"},"n":3}]`; err != nil || string(r.Result) != want {
			t.Errorf("got %s %+v, %v, want %s", r.Result, r.Error, err, want)
		}
		kept, err := d.Daemon.data.KV("t-a").Get(ctx, "b")
		if err != nil || string(kept) != `{"data":{"$bytes":"AP8="}}` {
			t.Errorf("kept is %s, %v", kept, err)
		}
	})
	t.Run("a name is a variable or a binding", func(t *testing.T) {
		for body, field := range map[string]string{
			`{"language":"js","code":"1","env":{"DB":"x"}}`:                                "env.DB",
			`{"language":"js","modules":{"main.js":"1","lib/.x.js":"1"},"main":"main.js"}`: `modules["lib/.x.js"]`,
		} {
			var e api.ErrorBody
			if status, text := post(t, d, "/v1/tenants/t-a/run", body); status != 400 || json.Unmarshal([]byte(text), &e) != nil || e.Error.Field != field {
				t.Errorf("%s: got %d %s", body, status, text)
			}
		}
	})
	t.Run("queries only read", func(t *testing.T) {
		r, err := d.api.Run(ctx, "t-a", js(`export default async (_, env) => env.DB.query("delete from n")`))
		if err != nil || r.Status != api.StatusError {
			t.Errorf("got %+v, %v", r, err)
		}
	})
	t.Run("code that throws says where", func(t *testing.T) {
		r, err := d.api.Run(ctx, "t-a", js("export default () => {\n  null.x\n}"))
		if err != nil || r.Status != api.StatusError || r.Error.Code != api.CodeError || r.Error.Position == nil || r.Error.Position.Line != 2 {
			t.Errorf("got %+v %+v, %v", r, r.Error, err)
		}
	})
	t.Run("an endless loop meets its limit", func(t *testing.T) {
		req := js(`export default () => { for (;;); }`)
		req.Limits = &policy.Limits{CPU: policy.Duration(50 * time.Millisecond)}
		r, err := d.api.Run(ctx, "t-a", req)
		if err != nil || r.Status != api.StatusKilled || r.Error.Code != api.CodeLimit || r.Error.Limit != "cpu" {
			t.Errorf("got %+v, %v", r, err)
		}
	})
	t.Run("refused code is 422 with its run", func(t *testing.T) {
		r, err := d.api.Run(ctx, "t-a", js(`export default (`))
		if err != nil || r.Status != api.StatusRefused || r.Error.Code != api.CodeRejected || r.Receipt == nil {
			t.Errorf("got %+v, %v", r, err)
		}
	})
	t.Run("no fetch without asking", func(t *testing.T) {
		r, err := d.api.Run(ctx, "t-a", js(`export default () => fetch("https://api.example.com/")`))
		if err != nil || r.Status != api.StatusError || r.Error == nil || *r.Usage.Requests.Used != 0 {
			t.Errorf("got %+v, %v", r, err)
		}
	})
	t.Run("no bindings when none are asked for", func(t *testing.T) {
		req := js(`export default (_, env) => Object.keys(env)`)
		req.Bindings, req.Env = map[string]api.BindingRequest{}, map[string]string{"A": "1"}
		text, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		// omitempty would leave the empty object out.
		body := strings.Replace(string(text), `"env"`, `"bindings":{},"env"`, 1)
		status, answer := post(t, d, "/v1/tenants/t-a/run", body)
		if status != 200 || !strings.Contains(answer, `"result":["A"]`) {
			t.Errorf("got %d %s", status, answer)
		}
	})
}

// notingPool notes what it is asked to run.
type notingPool struct {
	isolate.Pool
	got *isolate.Request
}

func (p *notingPool) Run(_ context.Context, r *isolate.Request, _ isolate.Host) (*isolate.Result, error) {
	p.got = r
	return &isolate.Result{Status: isolate.StatusOK, Phase: isolate.PhaseFinished, Value: json.RawMessage("1")}, nil
}

// TestThePoolGetsWhatIsGranted: the request as the engines see it. Python's own
// engine takes a minute to compile under the race detector; package isolate
// tests it.
func TestThePoolGetsWhatIsGranted(t *testing.T) {
	d := startDaemon(t)
	pool := &notingPool{Pool: d.pool}
	d.pool = pool
	seed := uint64(7)
	req := &api.RunRequest{Language: "python", Code: "def main(i, e): return 1", Input: json.RawMessage(`{"n":4}`), Env: map[string]string{"A": "b"},
		Bindings: map[string]api.BindingRequest{"kv": {}, "search": {}}, Limits: &policy.Limits{Wall: policy.Duration(time.Second)}, Deterministic: &api.Deterministic{Seed: &seed}, RunID: "p"}
	if r, err := d.api.Run(within(t), "t-a", req); err != nil || r.Status != api.StatusOK || r.Environment != "isolate" {
		t.Fatalf("%+v, %v", r, err)
	}
	got := pool.got
	if got.Tenant != "t-a" || got.RunID != "p" || got.Language != "python" || got.Main != "main.py" || got.Modules["main.py"] != req.Code ||
		string(got.Input) != `{"n":4}` || got.Env["A"] != "b" || got.Fetch || *got.Seed != 7 || got.Clock == nil || time.Since(*got.Clock) > time.Minute {
		t.Errorf("got %+v", got)
	}
	if len(got.Bindings) != 2 || got.Bindings[0].Name != "KV" || got.Bindings[1].Name != "search" || !slices.Equal(got.Bindings[1].Methods, []string{"find"}) {
		t.Errorf("bindings are %+v", got.Bindings)
	}
	l := got.Limits
	if l.Wall != time.Second || l.CPU != 500*time.Millisecond || l.Memory != 64<<20 || l.Output <= 0 || l.Result <= 0 || l.Calls <= 0 || l.Requests <= 0 || l.Concurrency <= 0 {
		t.Errorf("limits are %+v", l)
	}
}

// post sends a body as it is to the API socket.
func post(t *testing.T, d *testDaemon, path, body string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.cfg.Sockets[0].Path)
	}}}
	resp, err := c.Post("http://sandboxd"+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestBadInput: what is wrong is named, and changes nothing.
func TestBadInput(t *testing.T) {
	d := startDaemon(t)
	for _, tt := range []struct {
		path, body string
		status     int
		code       string
		field      string
	}{
		{"t-a/run", `{"language":"js","code":"1","nope":1}`, 400, api.CodeInvalidRequest, "nope"},
		{"t-a/run", `{"language":"js","code":1}`, 400, api.CodeInvalidRequest, "code"},
		{"t-a/run", `{"language":"js"}`, 400, api.CodeInvalidRequest, "code"},
		{"t-a/run", `{"language":"js","code":"1","run_id":"a b"}`, 400, api.CodeInvalidRequest, "run_id"},
		{"t-a/run", `{"language":"js","code":"1","limits":{"cpu":"2h"}}`, 400, api.CodeInvalidRequest, "limits.cpu"},
		{"t-a/run", `{"language":"js","code":"1","limits":{"pids":3}}`, 400, api.CodeInvalidRequest, "limits.pids"},
		{"t-a/run", `{"language":"js","code":"1","bindings":{"files":{}}}`, 403, api.CodeDenied, "bindings.files"},
		{"t-a/run", `{"language":"js","code":"1","outbound":{"allow":["evil.example"]}}`, 403, api.CodeDenied, "outbound.allow[0]"},
		{"t-a/run", `{"language":"js","code":"1","outbound":{"allow":["10.0.0.1"]}}`, 400, api.CodeInvalidRequest, "outbound.allow[0]"},
		{"t-a/run", `{"language":"shell","code":"1","environment":"isolate"}`, 400, api.CodeInvalidRequest, "environment"},
		{"t-a/run", `{"language":"wasm","code":"not base64"}`, 400, api.CodeInvalidRequest, "code"},
		{"t-a/run", `{"language":"js","code":"1","args":["x"]}`, 400, api.CodeInvalidRequest, "args"},
		{"t-a/run", `{"language":"ts","code":"1","needs":["process"]}`, 501, api.CodeUnsupported, "language"},
		{"t-a/run", `{"language":"shell","code":"1","limits":{"memory":"8MiB"}}`, 501, api.CodeUnsupported, "limits.memory"},
		{"t-a/run", `{"language":"shell","code":"1","limits":{"cpu":"1s"}}`, 400, api.CodeInvalidRequest, "limits.cpu"},
		{"t-isolates/run", `{"language":"js","code":"1","needs":["process"]}`, 403, api.CodeDenied, ""},
		{"t-isolates/run", `{"language":"ts","code":"1"}`, 403, api.CodeDenied, ""},
		{"T-A/run", `{"language":"js","code":"1"}`, 400, api.CodeInvalidRequest, "tenant"},
		{"other/run", `{"language":"js","code":"1"}`, 403, api.CodeDenied, "tenant"},
		{"t-a/jail/exec", `{"argv":["true"],"timeout":"31s"}`, 400, api.CodeInvalidRequest, "timeout"},
		{"t-a/jail/exec", `{"argv":[]}`, 400, api.CodeInvalidRequest, "argv"},
		{"t-isolates/jail/exec", `{"argv":["true"]}`, 403, api.CodeDenied, ""},
		{"t-a/jail/git", `{"clone":{"url":"https://u:p@h/x"}}`, 400, api.CodeInvalidRequest, "clone.url"},
		{"t-a/jail/git", `{"clone":null}`, 400, api.CodeInvalidRequest, "clone"},
		{"t-a/jail/ports/0", `{}`, 400, api.CodeInvalidRequest, "port"},
		{"t-a/jail/processes/x/signal", `{"signal":"SEGV"}`, 400, api.CodeInvalidRequest, "signal"},
		{"t-a/jail/processes/x/wait", `{"port":80,"exit":true}`, 400, api.CodeInvalidRequest, "port"},
		{"t-a/db/query", `{"sql":"select 1","params":[{}]}`, 400, api.CodeInvalidRequest, "params[0]"},
		{"t-a/db/query", `{"sql":"selec 1"}`, 400, api.CodeInvalidRequest, "sql"},
		{"t-a/db/exec?x=1", `{"sql":"select 1"}`, 400, api.CodeInvalidRequest, "x"},
	} {
		t.Run(tt.path+" "+tt.body, func(t *testing.T) {
			status, text := post(t, d, "/v1/tenants/"+tt.path, tt.body)
			var body api.ErrorBody
			if err := json.Unmarshal([]byte(text), &body); err != nil || body.Error == nil {
				t.Fatalf("%d %s: %v", status, text, err)
			}
			if e := body.Error; status != tt.status || e.Code != tt.code || e.Field != tt.field || e.Message == "" {
				t.Errorf("got %d %s, want %d %s at %q", status, text, tt.status, tt.code, tt.field)
			}
		})
	}
	if jails := d.tenants.all(); len(jails) != 0 {
		t.Errorf("a refused request made a jail")
	}
	if n := d.pool.Stats().Runs; n != 0 {
		t.Errorf("a refused request ran code %d times", n)
	}
}

func TestRunIDRunsOnce(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := js(`export default async (_, env) => { await new Promise(r => setTimeout(r, 20)); return Math.random() }`)
	req.RunID = "mine"
	var wg sync.WaitGroup
	results := make([]string, 20)
	for i := range results {
		wg.Go(func() {
			r, err := d.api.Run(ctx, "t-a", req)
			if err != nil {
				t.Error(err)
				return
			}
			results[i] = string(r.Result)
		})
	}
	wg.Wait()
	if slices.Sort(results); results[0] == "" || results[0] != results[len(results)-1] {
		t.Errorf("results are %q", results)
	}
	if n := d.pool.Stats().Runs; n != 1 {
		t.Errorf("it ran %d times", n)
	}
	_, err := d.api.Run(ctx, "t-a", &api.RunRequest{Language: "js", Code: "export default () => 2", RunID: "mine"})
	wantError(t, err, api.CodeConflict, "run_id")
	other := *req
	other.Input = json.RawMessage(`1`)
	_, err = d.api.Run(ctx, "t-a", &other)
	wantError(t, err, api.CodeConflict, "run_id")
	// An id is its tenant's own.
	r, err := d.api.Run(ctx, "t-b", req)
	if err != nil || string(r.Result) == results[0] {
		t.Errorf("another tenant's run with the same id: %s, %v", r.Result, err)
	}
	_, err = d.api.GetRun(ctx, "mine")
	wantError(t, err, api.CodeConflict, "tenant")
}

func TestDroppedConnectionEndsTheRun(t *testing.T) {
	d := startDaemon(t)
	ctx, cancel := context.WithCancel(within(t))
	req := js(`export default async () => { await new Promise(() => { setTimeout(() => {}, 60000) }) }`)
	req.RunID = "dropped"
	for e, err := range d.api.RunStream(ctx, "t-a", req) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type != api.EventStarted || e.Seq != 1 {
			t.Fatalf("the first event is %+v", e)
		}
		break // closes the connection
	}
	cancel()
	for e, err := range d.api.RunEvents(within(t), "dropped", 0, true) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == api.EventResult && (e.Run.Status != api.StatusKilled || e.Run.Error.Code != api.CodeCanceled) {
			t.Errorf("it ended as %+v", e.Run)
		}
	}
}

func TestCancelRun(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := js(`export default () => new Promise(() => { setTimeout(() => {}, 60000) })`)
	req.RunID = "long"
	for e, err := range d.api.RunStream(ctx, "t-a", req) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == api.EventStarted {
			if r, err := d.api.CancelRun(ctx, "long"); err != nil || r.Status != api.StatusKilled {
				t.Fatalf("canceled: %+v, %v", r, err)
			}
		}
	}
}

func TestToolsOfTheCaller(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := js(`export default async (_, env) => {
		const found = await env.search.find("x", {limit: 2});
		try { await env.search.find("bad") } catch (e) { return [found, e.message] }
	}`)
	var events []string
	var result *api.Run
	for e, err := range d.api.RunStream(ctx, "t-a", req) {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e.Type)
		switch e.Type {
		case api.EventCall:
			answer := &api.ToolAnswer{Result: json.RawMessage(`["hit"]`)}
			if string(e.Call.Args) == `["bad"]` {
				answer = &api.ToolAnswer{Error: &api.ToolError{Message: "no such thing"}}
			}
			if err := d.api.AnswerCall(ctx, e.RunID, e.Call.CallID, answer); err != nil {
				t.Fatal(err)
			}
			err := d.api.AnswerCall(ctx, e.RunID, e.Call.CallID, answer)
			wantError(t, err, api.CodeNotFound, "")
		case api.EventResult:
			result = e.Run
		}
	}
	if result == nil || result.Status != api.StatusOK || string(result.Result) != `[["hit"],"no such thing"]` {
		t.Errorf("got %+v", result)
	}
	if want := []string{"started", "call", "call", "result"}; !slices.Equal(events, want) {
		t.Errorf("events are %q, want %q", events, want)
	}
}

// TestRedirectKeepsTheAddress: where code was before is not the next host's
// business.
func TestRedirectKeepsTheAddress(t *testing.T) {
	p := &plan{request: &api.RunRequest{Outbound: &api.Outbound{Allow: []string{"a.test", "b.test"}}}, limits: policy.Limits{Requests: 9}}
	h := &host{run: &run{}, plan: p}
	for target, want := range map[string]string{"https://b.test/x": "", "https://a.test:8443/x": "", "https://a.test/x": "https://a.test/?key=1"} {
		before, err := http.NewRequest("GET", "https://a.test/?key=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		next, err := http.NewRequest("GET", target, nil)
		if err != nil {
			t.Fatal(err)
		}
		next.Header.Set("Referer", before.URL.String())
		if err := h.redirect(next, []*http.Request{before}); err != nil || next.Header.Get("Referer") != want {
			t.Errorf("%s: Referer %q, %v; want %q", target, next.Header.Get("Referer"), err, want)
		}
	}
}

// TestCallsGivenUp: a call that the code did not wait for is no failed call.
func TestCallsGivenUp(t *testing.T) {
	d := startDaemon(t)
	r, err := d.api.Run(within(t), "t-a", js(`export default (_, env) => { env.search.find("x"); return 1 }`))
	if err != nil || r.Status != api.StatusOK || len(r.Calls) != 1 || r.Calls[0].Status != "canceled" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestStopSaysWhy: a run that the daemon's stop ends does not blame its caller.
func TestStopSaysWhy(t *testing.T) {
	d := startDaemon(t)
	ended := make(chan *api.Run, 1)
	go func() {
		r, err := d.api.Run(within(t), "t-a", js(`export default () => new Promise((r) => setTimeout(r, 1e6))`))
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	for n := 0; n == 0; time.Sleep(time.Millisecond) {
		n = d.pool.Stats().Running
	}
	if err := d.Close(within(t)); err != nil {
		t.Error(err)
	}
	if r := <-ended; r == nil || r.Status != api.StatusKilled || r.Error.Code != api.CodeCanceled || r.Error.Message != "the daemon was stopped" {
		t.Errorf("%+v", r)
	}
}

// TestDoctorIsKept: who asks again is not answered by new trials.
func TestDoctorIsKept(t *testing.T) {
	d := startDaemon(t)
	for range 2 {
		if _, err := d.api.Doctor(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	first := d.diagnosis.at
	if _, err := d.api.Doctor(within(t)); err != nil || d.diagnosis.at != first || first.IsZero() {
		t.Errorf("%v after %v: %v", d.diagnosis.at, first, err)
	}
}
