package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

func TestIsolateReturnsAValue(t *testing.T) {
	r := run(t, tenant(t, harness.AgentPrefix), api.RunRequest{
		Language: "js",
		Code:     `export default async function (input, env) { console.log("adding", input.a); return {sum: input.a + input.b, who: env.WHO}; }`,
		Input:    json.RawMessage(`{"a":1,"b":41}`),
		Env:      map[string]string{"WHO": "me"},
	})
	if r.Status != api.StatusOK || r.Environment != api.EnvironmentIsolate || r.Phase != "finished" || r.Error != nil {
		t.Fatalf("status %s in %s, phase %s: %+v", r.Status, r.Environment, r.Phase, r.Error)
	}
	if got, want := string(r.Result), `{"sum":42,"who":"me"}`; got != want {
		t.Errorf("result %s, want %s", got, want)
	}
	if len(r.Logs) != 1 || r.Logs[0].Message != "adding 1" || r.Logs[0].Time.IsZero() {
		t.Errorf("logs %+v", r.Logs)
	}
	u := r.Usage
	if u.Wall.Used == nil || *u.Wall.Used <= 0 || u.Wall.Limit.Std() != harness.WallLimit() || u.CPU.Limit.Std() != harness.CPULimit() || u.MemoryPeak.Used == nil || *u.MemoryPeak.Used <= 0 {
		t.Errorf("usage %+v", u)
	}
	if len(r.CodeSHA256) != 64 {
		t.Errorf("code_sha256 %q", r.CodeSHA256)
	}
}

func TestIsolateTypeScriptModules(t *testing.T) {
	r := run(t, tenant(t, harness.AgentPrefix), api.RunRequest{
		Language: "ts",
		Main:     "main.ts",
		Modules: map[string]string{
			"main.ts":     "import { twice } from './lib/util';\ninterface In { n: number }\nexport default async (input: In): Promise<number> => twice(input.n);\n",
			"lib/util.ts": "export const twice = (n: number): number => n * 2;\n",
		},
		Input: json.RawMessage(`{"n":21}`),
	})
	if r.Status != api.StatusOK || string(r.Result) != "42" {
		t.Fatalf("status %s, result %s: %+v", r.Status, r.Result, r.Error)
	}
}

// TestIsolateWorker is a module as it is written for a worker: a form comes in, a
// stream goes out.
func TestIsolateWorker(t *testing.T) {
	r := run(t, tenant(t, harness.AgentPrefix), api.RunRequest{
		Language: "ts",
		Code: `export default {
	async fetch(request: Request, env: Record<string, string>): Promise<Response> {
		const form = await request.formData();
		const file = form.get("file") as File;
		const upper = new TransformStream<string, string>({ transform: (chunk, c) => c.enqueue(chunk.toUpperCase()) });
		const body = file.stream().pipeThrough(new TextDecoderStream()).pipeThrough(upper).pipeThrough(new TextEncoderStream());
		const id = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
		return new Response(body, { status: 201, headers: { "x-name": file.name, "x-id": new Uint8Array(id).toHex().slice(0, 8), "x-host": new URL(request.url).host } });
	},
};`,
		Input: json.RawMessage(`{"url": "https://bücher.example/upload", "method": "POST", "headers": {"content-type": "multipart/form-data; boundary=b"},
			"body": "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nhello\r\n--b--\r\n"}`),
	})
	want := `{"status":201,"headers":[["x-host","xn--bcher-kva.example"],["x-id","2cf24dba"],["x-name","a.txt"]],"body":"HELLO"}`
	if r.Status != api.StatusOK || string(r.Result) != want {
		t.Fatalf("status %s, result %s: %+v", r.Status, r.Result, r.Error)
	}
}

func TestIsolateErrors(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	tests := []struct {
		name, language, code string
		wantCode             string
		line                 int
		message              string
	}{
		{"thrown, with the TypeScript line", "ts", "interface A { x: number }\n\nexport default (): number => {\n  const a: A = { x: 1 };\n  throw new Error('no rows for ' + a.x);\n};\n", api.CodeError, 5, "no rows for 1"},
		{"rejected promise", "js", "export default async () => {\n  await null;\n  throw new TypeError('late');\n}", api.CodeError, 3, "late"},
		{"syntax", "js", "export default () => {\n  return 1 +;\n}", api.CodeRejected, 2, ""},
		{"type syntax in JavaScript", "js", "export default (a: number) => a", api.CodeRejected, 1, ""},
		{"unknown module", "js", "import fs from 'fs';\nexport default () => fs", api.CodeRejected, 1, "fs"},
		{"no default export", "js", "export const a = 1", api.CodeRejected, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := do(t, "POST", tenantPath(who)+"/run", api.RunRequest{Language: tt.language, Code: tt.code})
			e := a.Error()
			if e == nil {
				t.Fatalf("no error: %s", a.Body)
			}
			if e.Code != tt.wantCode || !strings.Contains(e.Message, tt.message) {
				t.Errorf("code %q, message %q; want %q and %q", e.Code, e.Message, tt.wantCode, tt.message)
			}
			if tt.line > 0 && (e.Position == nil || e.Position.Line != tt.line) {
				t.Errorf("position %+v, want line %d", e.Position, tt.line)
			}
		})
	}
}

func TestIsolateLimits(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	tests := []struct{ name, code, limit string }{
		{"endless loop", `export default () => { for (;;); }`, "cpu"},
		{"loop while loading", `while (true); export default () => 1`, "cpu"},
		{"endless promises", `export default async () => { for (;;) await null; }`, "cpu"},
		{"allocation bomb", `export default () => { const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1)); }`, "memory"},
		{"string bomb", `export default () => { let s = "x"; for (;;) s += s; }`, ""},
		{"output flood", `export default () => { for (;;) console.log("x".repeat(1000)); }`, "output"},
		{"never settles", `export default () => new Promise(() => {})`, ""},
		{"endless recursion", `export default function f() { return f() + 1 }`, "stack"},
		{"backtracking", `export default () => /^(a+)+$/.test("a".repeat(40) + "b")`, "cpu"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			r := run(t, who, api.RunRequest{Language: "js", Code: tt.code})
			if r.Status == api.StatusOK || r.Error == nil {
				t.Fatalf("status %s, result %.100s", r.Status, r.Result)
			}
			if tt.limit != "" && (r.Error.Code != api.CodeLimit || r.Error.Limit != tt.limit || r.Error.Allowed == "" || r.Status != api.StatusKilled) {
				t.Errorf("status %s, code %q, limit %q, allowed %q; want %q killed at %q", r.Status, r.Error.Code, r.Error.Limit, r.Error.Allowed, api.CodeLimit, tt.limit)
			}
			if took := time.Since(began); took > harness.WallLimit()+harness.Scale(3*time.Second) {
				t.Errorf("it took %v", took)
			}
			// The next call is as if nothing had been.
			if got := js(t, who, `export default () => 1 + 1`); got != "2" {
				t.Errorf("afterwards 1 + 1 is %s", got)
			}
		})
	}
}

// TestIsolateLoopHoldsNobodyUp: while one tenant spins, another is served.
func TestIsolateLoopHoldsNobodyUp(t *testing.T) {
	spinner, other := tenant(t, harness.AgentPrefix), harness.AgentPrefix+"beside"
	done := make(chan string, 1)
	go func() {
		a, err := sys.API.Do(t.Context(), "POST", tenantPath(spinner)+"/run", api.RunRequest{Language: "js", Code: `export default () => { for (;;); }`})
		if err != nil {
			done <- err.Error()
			return
		}
		done <- a.Error().Limit
	}()
	served := 0
	for {
		select {
		case limit := <-done:
			if limit != "cpu" {
				t.Errorf("the spinner ended with %q, not at its cpu limit", limit)
			}
			if served < 5 {
				t.Errorf("only %d calls were served beside it", served)
			}
			return
		default:
			js(t, other, `export default () => 1`)
			served++
		}
	}
}

func TestIsolateKeepsNothing(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	const code = `export default () => {
		const before = [typeof globalThis.mark, typeof Array.prototype.mark, typeof Math.mark];
		globalThis.mark = Array.prototype.mark = Math.mark = "was here";
		return before;
	}`
	for range 3 {
		if got, want := js(t, who, code), `["undefined","undefined","undefined"]`; got != want {
			t.Fatalf("a call finds %s of the call before", got)
		}
	}
}

// TestIsolateHasNoAuthority: a tenant with nothing but an isolate holds nothing.
func TestIsolateHasNoAuthority(t *testing.T) {
	r := run(t, tenant(t, harness.IsolatePrefix), api.RunRequest{Language: "js", Code: `export default (input, env) => ({
		env: Object.keys(env),
		there: ["process", "require", "Deno", "XMLHttpRequest", "WebSocket", "std", "os", "scriptArgs"].filter(n => n in globalThis),
	})`})
	if got, want := string(r.Result), `{"env":[],"there":[]}`; got != want {
		t.Errorf("it holds %s, want %s: %+v", got, want, r.Error)
	}
}

// dump walks everything reachable from globalThis and the function's arguments.
const dump = `export default async (input, env) => {
	const seen = new Set(), out = [];
	const walk = (path, v, depth) => {
		if (out.length > 5000 || depth > 6) return;
		if (typeof v === "string") out.push(path + "=" + v);
		if (v === null || typeof v !== "object" && typeof v !== "function" || seen.has(v)) return;
		seen.add(v);
		out.push(path);
		for (const k of Reflect.ownKeys(v)) {
			let x;
			try { x = v[k] } catch (e) { x = String(e && e.stack) }
			walk(path + "." + String(k), x, depth + 1);
		}
		walk(path + ".__proto__", Object.getPrototypeOf(v), depth + 1);
	};
	walk("globalThis", globalThis, 0);
	walk("env", env, 0);
	try { null.x } catch (e) { out.push(e.stack) }
	const answer = await fetch(input.url);
	walk("answer", [await answer.text(), [...answer.headers], answer.url], 0);
	return out;
}`

// TestIsolateDumpHoldsNoSecret: not what it can reach, nor the careless answer
// of a server that sends the token back.
func TestIsolateDumpHoldsNoSecret(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	r := run(t, who, api.RunRequest{
		Language: "js", Code: dump, Input: json.RawMessage(`{"url":"https://` + harness.APIHost + `/v1/leak"}`),
		Bindings: bindings("DB", "KV", "LOG"), Outbound: &api.Outbound{Allow: []string{harness.APIHost}},
	})
	if r.Status != api.StatusOK {
		t.Fatalf("%s: %+v", r.Status, r.Error)
	}
	var lines []string
	if err := json.Unmarshal(r.Result, &lines); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(lines, "\n")
	if len(lines) < 300 || !strings.Contains(text, "env.DB") || !strings.Contains(text, "you_sent") {
		t.Errorf("a dump of %d lines, without env.DB or the server's answer, says nothing", len(lines))
	}
	for _, foreign := range []string{"/root", "/usr/", "/var/", "SSL_CERT_FILE", "CREDENTIALS"} {
		if strings.Contains(text, foreign) {
			t.Errorf("the dump tells of the host: %q", foreign)
		}
	}
	noSecret(t, r.Result)
}

func TestIsolateForcedEnvironment(t *testing.T) {
	a := do(t, "POST", tenantPath(tenant(t, harness.AgentPrefix))+"/run",
		api.RunRequest{Language: "js", Code: `export default () => 1`, Needs: []string{"filesystem"}, Environment: api.EnvironmentIsolate})
	e := wantError(t, a, 400, api.CodeInvalidRequest, "environment")
	if !strings.Contains(e.Message, "filesystem") {
		t.Errorf("message %q does not say why", e.Message)
	}
}

func TestIsolateRunID(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	req := api.RunRequest{Language: "js", Code: `export default async (i, env) => { await env.KV.put("count", (+(await env.KV.get("count")) || 0) + 1); return await env.KV.get("count") }`,
		Bindings: bindings("KV"), RunID: "only-once-" + who}
	first, again := run(t, who, req), run(t, who, req)
	if first.Status != api.StatusOK || string(first.Result) != string(again.Result) || first.Receipt.Seq != again.Receipt.Seq {
		t.Errorf("first %s %s, again %s %s", first.Result, first.Receipt.Hash, again.Result, again.Receipt.Hash)
	}
	req.Code = `export default () => "other"`
	wantError(t, do(t, "POST", tenantPath(who)+"/run", req), 409, api.CodeConflict, "run_id")
	var kept api.Run
	want(t, "GET", "/v1/runs/"+first.RunID, nil, &kept)
	if kept.CodeSHA256 != first.CodeSHA256 || kept.Status != api.StatusOK {
		t.Errorf("the kept record is %+v", kept)
	}
}

func TestIsolateStream(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	events := stream(t, "POST", tenantPath(who)+"/run",
		api.RunRequest{Language: "js", Code: `export default () => { console.log("one"); console.error("two"); return 3 }`, RunID: "streamed-" + who}, nil)
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, e.Type)
		if e.Time.IsZero() {
			t.Errorf("event %d has no time", e.Seq)
		}
	}
	if got, want := strings.Join(kinds, " "), "started log log result"; got != want {
		t.Fatalf("events %s, want %s", got, want)
	}
	if last := events[len(events)-1]; last.Run == nil || string(last.Run.Result) != "3" {
		t.Errorf("last event %+v", last)
	}
	later := stream(t, "GET", fmt.Sprintf("/v1/runs/streamed-%s/events?after=%d&follow=true", who, events[1].Seq), nil, nil)
	if len(later) != 2 || later[0].Seq != events[2].Seq {
		t.Errorf("after event %d come %+v", events[1].Seq, later)
	}
}

// TestIsolateEndsWithItsConnection: nobody waits any more, so nothing runs.
func TestIsolateEndsWithItsConnection(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	id := "dropped-" + who
	ctx, drop := context.WithCancel(deadline(t))
	err := sys.API.Stream(ctx, "POST", tenantPath(who)+"/run", api.RunRequest{Language: "js", Code: `export default () => new Promise(() => {})`, RunID: id,
		Bindings: bindings("KV")}, func(e api.Event) bool { drop(); return e.Type != api.EventStarted })
	if err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	eventually(t, "the run has ended", func() bool {
		var r api.Run
		want(t, "GET", "/v1/runs/"+id, nil, &r)
		return r.Status == api.StatusKilled || r.Status == api.StatusError
	})
}

func TestIsolateLowerLimits(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	r := run(t, who, api.RunRequest{Language: "js", Code: `export default () => { for (;;); }`,
		Limits: &policy.Limits{CPU: policy.Duration(harness.CPULimit() / 4)}})
	if r.Error == nil || r.Error.Limit != "cpu" || r.Usage.CPU.Limit.Std() != harness.CPULimit()/4 {
		t.Errorf("%+v, limit %v", r.Error, r.Usage.CPU.Limit)
	}
	a := do(t, "POST", tenantPath(who)+"/run", api.RunRequest{Language: "js", Code: `export default () => 1`, Limits: &policy.Limits{Memory: 1 << 30}})
	if e := wantError(t, a, 400, api.CodeInvalidRequest, "limits.memory"); e.Allowed == "" {
		t.Error("the error does not say what is allowed")
	}
}
