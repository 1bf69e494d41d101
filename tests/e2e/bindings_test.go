package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// secretForms are the forms in which the world's token could come out.
func secretForms() []string {
	token := sys.World.Token
	return []string{token, base64.StdEncoding.EncodeToString([]byte(token)), base64.RawURLEncoding.EncodeToString([]byte(token)),
		hex.EncodeToString([]byte(token)), base64.StdEncoding.EncodeToString([]byte("Bearer " + token)), url.QueryEscape("Bearer " + token)}
}

func dbExec(t *testing.T, tenant, sql string, params ...any) {
	t.Helper()
	want(t, "POST", tenantPath(tenant)+"/db/exec", map[string]any{"sql": sql, "params": append([]any{}, params...)}, nil)
}

func TestDatabaseIsTheTenantsOwnAndReadOnly(t *testing.T) {
	alice, bob := tenant(t, harness.AgentPrefix+"alice-"), tenant(t, harness.AgentPrefix+"bob-")
	for _, who := range []string{alice, bob} {
		dbExec(t, who, "create table notes (id integer primary key, text text)")
		dbExec(t, who, "insert into notes (text) values (?)", "of "+who)
	}
	const query = `export default async (i, env) => await env.DB.query("select text from notes where id = ?", 1)`
	for _, who := range []string{alice, bob} {
		if got, want := js(t, who, query), `[{"text":"of `+who+`"}]`; got != want {
			t.Errorf("%s reads %s, want %s", who, got, want)
		}
	}
	for _, sql := range []string{
		"insert into notes (text) values ('mine')", "update notes set text = ''", "delete from notes", "drop table notes", "create table t (x)",
		"attach database '/etc/passwd' as p", "attach database ':memory:' as m", "pragma writable_schema = 1", "vacuum into '/tmp/copy'",
		"select load_extension('/tmp/x.so')", "select 1; drop table notes",
	} {
		text, _ := json.Marshal(sql)
		got := js(t, alice, `export default async (i, env) => { try { await env.DB.query(`+string(text)+`); return "done" } catch (e) { return "refused: " + e.message } }`)
		if !strings.HasPrefix(got, `"refused: `) {
			t.Errorf("%s: %s", sql, got)
		}
	}
	var rows api.Rows
	want(t, "POST", tenantPath(alice)+"/db/query", api.SQLRequest{SQL: "select count(*), max(text) from notes"}, &rows)
	if text, _ := json.Marshal(rows.Rows); string(text) != `[[1,"of `+alice+`"]]` {
		t.Errorf("afterwards the table holds %s", text)
	}
}

func TestKVIsSharedWithTheService(t *testing.T) {
	who, other := tenant(t, harness.AgentPrefix+"kv-"), tenant(t, harness.AgentPrefix+"kw-")
	want(t, "PUT", tenantPath(who)+"/kv/greeting", []byte(`"hello"`), nil)
	const code = `export default async (i, env) => [await env.KV.get("greeting"), await env.KV.put("seen/1", {n: 1}), await env.KV.list("seen/")]`
	if got, want := js(t, who, code), `["hello",null,["seen/1"]]`; got != want {
		t.Errorf("the code sees %s, want %s", got, want)
	}
	if a := want(t, "GET", tenantPath(who)+"/kv/seen/1", nil, nil); strings.TrimSpace(string(a.Body)) != `{"n":1}` {
		t.Errorf("the service sees %s", a.Body)
	}
	wantError(t, do(t, "GET", tenantPath(other)+"/kv/greeting", nil), 404, api.CodeNotFound, "")
	if got := js(t, other, `export default async (i, env) => await env.KV.get("greeting")`); got != "null" {
		t.Errorf("another tenant reads %s", got)
	}
}

func TestLogBinding(t *testing.T) {
	r := run(t, tenant(t, harness.AgentPrefix), api.RunRequest{Language: "js", Bindings: bindings("LOG"),
		Code: `export default async (i, env) => { await env.LOG.warn("low stock", {item: "lamp"}) }`})
	if len(r.Logs) != 1 || r.Logs[0].Level != "warn" || r.Logs[0].Message != "low stock" || string(r.Logs[0].Data) != `{"item":"lamp"}` {
		t.Errorf("logs %+v", r.Logs)
	}
}

// TestBindingsAreAskedFor: a run holds what it asked for of what is granted.
func TestBindingsAreAskedFor(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	r := run(t, who, api.RunRequest{Language: "js", Code: `export default (i, env) => Object.keys(env)`, Bindings: bindings("LOG")})
	if string(r.Result) != `["LOG"]` {
		t.Errorf("env holds %s", r.Result)
	}
	a := do(t, "POST", tenantPath(who)+"/run", api.RunRequest{Language: "js", Code: `export default () => 1`, Bindings: bindings("MAIL")})
	if e := wantError(t, a, 403, api.CodeDenied, "bindings.MAIL"); !strings.Contains(e.Allowed, "KV") {
		t.Errorf("allowed %q does not say what there is", e.Allowed)
	}
}

func fetchRun(t *testing.T, tenant, code string, allow ...string) api.Run {
	t.Helper()
	req := api.RunRequest{Language: "js", Code: code}
	if allow != nil {
		req.Outbound = &api.Outbound{Allow: allow}
	}
	return run(t, tenant, req)
}

// TestFetchGetsTheCredential: the request that leaves carries the token, and
// nothing that comes back does.
func TestFetchGetsTheCredential(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	r := fetchRun(t, who, `export default async () => {
		const a = await fetch("https://`+harness.APIHost+`/v1/things?for=`+who+`", {headers: {authorization: "Bearer mine", "x-own": "kept"}});
		const leak = await fetch("https://`+harness.APIHost+`/v1/leak");
		return [a.status, await a.json(), leak.status, await leak.text(), leak.headers.get("x-leak")];
	}`, harness.APIHost)
	if r.Status != api.StatusOK || !strings.HasPrefix(string(r.Result), `[200,{"host":"`+harness.APIHost+`"`) {
		t.Fatalf("status %s, result %s: %+v", r.Status, r.Result, r.Error)
	}
	if r.Usage.Requests.Used == nil || *r.Usage.Requests.Used != 2 || len(r.Calls) != 2 || r.Calls[0].Binding != "fetch" {
		t.Errorf("requests %+v, calls %+v", r.Usage.Requests, r.Calls)
	}
	for _, s := range sys.World.Requests(harness.APIHost) {
		if s.Query == "for="+who {
			if !s.Authorised || s.Header.Get("X-Own") != "kept" {
				t.Errorf("the world saw %+v", s)
			}
			return
		}
	}
	t.Error("the request did not reach the world")
}

func TestFetchRefusals(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	api1 := "https://" + harness.APIHost
	tests := []struct {
		name, call string
		allow      []string
		host       string // that must see nothing
	}{
		{"a host that the run did not ask for", `fetch("https://` + harness.OtherHost + `/v1/x?refused")`, []string{harness.APIHost}, harness.OtherHost},
		{"a host that nobody granted", `fetch("https://` + harness.DeniedHost + `/v1/x?refused")`, []string{harness.APIHost}, harness.DeniedHost},
		{"the address in place of the name", `fetch("https://` + sys.World.Addr.String() + `/v1/x?refused")`, []string{harness.APIHost}, sys.World.Addr.String()},
		{"a path outside the rule", `fetch("` + api1 + `/v2/x?refused")`, []string{harness.APIHost}, ""},
		{"a path that climbs out", `fetch("` + api1 + `/v1/%2e%2e/v2/x?refused")`, []string{harness.APIHost}, ""},
		{"a method outside the rule", `fetch("` + api1 + `/v1/x?refused", {method: "DELETE"})`, []string{harness.APIHost}, ""},
		{"another port", `fetch("` + api1 + `:8443/v1/x?refused")`, []string{harness.APIHost}, ""},
		{"cleartext", `fetch("http://` + harness.APIHost + `/v1/x?refused")`, []string{harness.APIHost}, ""},
		{"a host header of its own", `fetch("` + api1 + `/v1/x?refused", {headers: {host: "` + harness.DeniedHost + `"}}).then(r => { throw new Error("denied? " + r.status) })`, []string{harness.APIHost}, harness.DeniedHost},
		{"loopback", `fetch("http://127.0.0.1/v1/x?refused")`, []string{harness.APIHost}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := fetchRun(t, who, `export default async () => { try { const a = await `+tt.call+`; return "came through: " + a.status } catch (e) { return "refused: " + e.message } }`, tt.allow...)
			if !strings.HasPrefix(string(r.Result), `"refused: `) {
				t.Errorf("result %s, error %+v", r.Result, r.Error)
			}
			for _, s := range sys.World.Requests(tt.host) {
				if tt.host != "" && s.Query == "refused" {
					t.Errorf("the world saw %+v", s)
				}
			}
			if tt.name != "a host header of its own" && len(r.Denials) == 0 {
				t.Error("the record tells of no denial")
			}
		})
	}
	for _, s := range sys.World.Requests(harness.APIHost) {
		if s.Query == "refused" && (s.Method == "DELETE" || !strings.HasPrefix(s.Path, "/v1/")) {
			t.Errorf("the world saw %+v", s)
		}
	}
	if code, err := sys.World.Reach(deadline(t), "https://"+harness.DeniedHost+"/v1/x"); err != nil || code != http.StatusOK {
		t.Errorf("the denied host itself answers %d, %v: the refusals above mean nothing", code, err)
	}
}

// TestFetchRedirectTakesNoCredentialAlong: the second request is decided anew.
func TestFetchRedirectTakesNoCredentialAlong(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	r := fetchRun(t, who, `export default async () => (await fetch("https://`+harness.APIHost+`/v1/redirect")).url`, harness.APIHost, harness.OtherHost)
	if got, want := string(r.Result), `"https://`+harness.OtherHost+`/v1/target"`; got != want {
		t.Fatalf("result %s, want %s: %+v", got, want, r.Error)
	}
	seen := 0
	for _, s := range sys.World.Requests(harness.OtherHost) {
		if s.Path == "/v1/target" {
			seen++
			if s.Authorised || s.Header.Get("Authorization") != "" {
				t.Errorf("the token went along: %+v", s)
			}
		}
	}
	if seen == 0 {
		t.Error("the target saw nothing")
	}
}

// TestFetchRedirectModes: the code may have the redirect itself, or none.
func TestFetchRedirectModes(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	const from = "https://" + harness.APIHost + "/v1/redirect"
	r := fetchRun(t, who, `export default async () => {
		const manual = await fetch("`+from+`", { redirect: "manual" });
		const follow = await fetch("`+from+`");
		const error = await fetch("`+from+`", { redirect: "error" }).then(() => "came through", (e) => e.message);
		return [manual.status, manual.headers.get("location"), manual.redirected, follow.redirected, error];
	}`, harness.APIHost, harness.OtherHost)
	var got []any
	if err := json.Unmarshal(r.Result, &got); err != nil || len(got) != 5 {
		t.Fatalf("result %s: %+v", r.Result, r.Error)
	}
	if got[0] != 302.0 || got[1] != "https://"+harness.OtherHost+"/v1/target" || got[2] != false || got[3] != true || !strings.Contains(fmt.Sprint(got[4]), "forbids") {
		t.Errorf("result %s", r.Result)
	}
	p := run(t, who, api.RunRequest{Language: "python", Outbound: &api.Outbound{Allow: []string{harness.APIHost}},
		Code: "def main(input, env):\n    return env.fetch('" + from + "', redirect='manual').status\n"})
	if string(p.Result) != "302" {
		t.Errorf("python: result %s: %+v", p.Result, p.Error)
	}
}

func TestFetchIsAbsentByDefault(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	const code = `export default async () => { try { await fetch("https://` + harness.OtherHost + `/v1/absent"); return "came through" } catch (e) { return e.message } }`
	if got := fetchRun(t, who, code); !strings.Contains(string(got.Result), "not granted") {
		t.Errorf("fetch without a grant says %s", got.Result)
	}
	for _, s := range sys.World.Requests(harness.OtherHost) {
		if s.Path == "/v1/absent" {
			t.Errorf("the world saw %+v", s)
		}
	}
	a := do(t, "POST", tenantPath(who)+"/run", api.RunRequest{Language: "js", Code: `export default () => 1`, Outbound: &api.Outbound{Allow: []string{harness.DeniedHost}}})
	wantError(t, a, 403, api.CodeDenied, "outbound.allow[0]")
}

func TestFetchRequestLimit(t *testing.T) {
	r := fetchRun(t, tenant(t, harness.AgentPrefix), `export default async () => { for (let i = 0; i < 20; i++) await fetch("https://`+harness.OtherHost+`/v1/n") }`, harness.OtherHost)
	if r.Status == api.StatusOK {
		t.Errorf("20 requests went through a limit of 5: %+v", r.Usage.Requests)
	}
}

// TestToolsOfTheCaller: calls come as events of the run's stream and are
// answered by the caller.
func TestToolsOfTheCaller(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	id := "tools-" + who
	req := api.RunRequest{Language: "js", RunID: id, Bindings: bindings("SEARCH"), Code: `export default async (i, env) => {
		const found = await env.SEARCH.find("lamp", {max: 2});
		let failed = "";
		try { await env.SEARCH.fail() } catch (e) { failed = e.message }
		let other = "";
		try { await env.SEARCH.drop() } catch (e) { other = e.name }
		return [found, failed, other];
	}`}
	events := stream(t, "POST", tenantPath(who)+"/run", req, func(e api.Event) bool {
		if e.Type != api.EventCall {
			return true
		}
		answer := api.ToolAnswer{Error: &api.ToolError{Message: "out of order"}}
		if e.Call.Method == "find" {
			if string(e.Call.Args) != `["lamp",{"max":2}]` || e.Call.Binding != "SEARCH" {
				t.Errorf("call %+v", e.Call)
			}
			answer = api.ToolAnswer{Result: json.RawMessage(`["table lamp"]`)}
		}
		want(t, "POST", "/v1/runs/"+id+"/calls/"+e.Call.CallID, answer, nil)
		return true
	})
	last := events[len(events)-1]
	if last.Run == nil {
		t.Fatalf("last event %+v", last)
	}
	if got, want := string(last.Run.Result), `[["table lamp"],"out of order","TypeError"]`; got != want {
		t.Errorf("result %s, want %s: %+v", got, want, last.Run.Error)
	}
	wantError(t, do(t, "POST", "/v1/runs/"+id+"/calls/c99", api.ToolAnswer{}), 404, api.CodeNotFound, "")
}
