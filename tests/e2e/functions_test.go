package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

func functionPath(tenant, name string) string { return tenantPath(tenant) + "/functions/" + name }

// deploy deploys a function that must be right; it goes with the test.
func deploy(t *testing.T, tenant, name string, req api.FunctionRequest) api.Function {
	t.Helper()
	var f api.Function
	want(t, "PUT", functionPath(tenant, name), req, &f)
	t.Cleanup(func() {
		if a, err := sys.API.Do(context.Background(), "DELETE", functionPath(tenant, name), nil); err == nil && a.Status != http.StatusNoContent {
			t.Errorf("delete %s: %d: %s", name, a.Status, a.Body)
		}
	})
	return f
}

// invoke calls a function and returns the run's record, however it ended.
func invoke(t *testing.T, tenant, name string, inv api.InvokeRequest) api.Run {
	t.Helper()
	var r api.Run
	want(t, "POST", functionPath(tenant, name)+"/invoke", inv, &r)
	if r.Receipt == nil || r.Function != name {
		t.Errorf("the record lacks a receipt or the function's name: %+v", r)
	}
	return r
}

func wantResult(t *testing.T, r *api.Run, result string) {
	t.Helper()
	if r.Status != api.StatusOK || string(r.Result) != result {
		t.Errorf("%s: %s, %+v; want %s", r.Status, r.Result, r.Error, result)
	}
}

// TestFunctions: in each language a deployed function is checked, prepared and
// called, and no call sees another.
func TestFunctions(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	for _, tc := range []struct {
		name string
		req  api.FunctionRequest
	}{
		{"js", api.FunctionRequest{Language: "js", Main: "main.js", Modules: map[string]string{
			"main.js":  `import { table } from './table.js'; let n = 0; export default (input, env) => { n++; table.push(input); return [n, table.length, env.NAME]; }`,
			"table.js": `export const table = []; for (let i = 0; i < 100; i++) table.push(i);`}}},
		{"ts", api.FunctionRequest{Language: "ts", Code: `const table: number[] = []; for (let i = 0; i < 100; i++) table.push(i);
let n: number = 0; export default (input: number, env: { NAME: string }) => { n++; table.push(input); return [n, table.length, env.NAME]; }`}},
		{"python", api.FunctionRequest{Language: "python", Main: "main.py", Modules: map[string]string{
			"main.py":  "from table import table\nn = 0\ndef main(input, env):\n    global n\n    n += 1\n    table.append(input)\n    return [n, len(table), env.NAME]\n",
			"table.py": "import json, random, re\ntable = list(range(100))\n"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.req.Env = map[string]string{"NAME": "deployed"}
			f := deploy(t, who, tc.name, tc.req)
			if !f.Snapshot || f.SnapshotReason != "" || f.Language != tc.req.Language {
				t.Errorf("deployed as %+v", f)
			}
			for i := range 4 {
				r := invoke(t, who, tc.name, api.InvokeRequest{Input: json.RawMessage(fmt.Sprint(i))})
				wantResult(t, &r, `[1,101,"deployed"]`)
				if r.CodeSHA256 != f.CodeSHA256 || r.Phase != "finished" {
					t.Errorf("its record is %+v", r)
				}
			}
			r := invoke(t, who, tc.name, api.InvokeRequest{Env: map[string]string{"NAME": "called"}})
			wantResult(t, &r, `[1,101,"called"]`)
			var list api.FunctionList
			want(t, "GET", tenantPath(who)+"/functions", nil, &list)
			if i := slices.IndexFunc(list.Functions, func(g api.Function) bool { return g.Name == tc.name }); i < 0 || list.Functions[i].Invocations != 5 {
				t.Errorf("listed as %+v", list.Functions)
			}
		})
	}
}

// TestFunctionWasm: a tenant's own module is deployed like any other code.
func TestFunctionWasm(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	// A module whose _start does nothing.
	module := []byte("\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x05\x03\x01\x00\x01\x07\x13\x02\x06memory\x02\x00\x06_start\x00\x00\x0a\x04\x01\x02\x00\x0b")
	req := api.FunctionRequest{Language: "wasm", Code: base64.StdEncoding.EncodeToString(module)}
	f := deploy(t, who, "w", req)
	if f.Snapshot || f.SnapshotReason == "" {
		t.Errorf("deployed as %+v", f)
	}
	for range 2 {
		if r := invoke(t, who, "w", api.InvokeRequest{}); r.Status != api.StatusOK {
			t.Errorf("%s: %+v", r.Status, r.Error)
		}
	}
	req.Code = base64.StdEncoding.EncodeToString(module[:40])
	wantError(t, do(t, "PUT", functionPath(who, "w"), req), http.StatusUnprocessableEntity, api.CodeRejected, "")
}

// TestFunctionIsRefused: what cannot run is refused when it is deployed, with
// the place of the fault, and what is deployed stays.
func TestFunctionIsRefused(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	deploy(t, who, "f", api.FunctionRequest{Language: "js", Code: "export default () => 1"})
	for _, tc := range []struct {
		name, language, code, want string
		line                       int
	}{
		{"js", "js", "const a = 1;\nexport default () => { let = }", api.CodeRejected, 2},
		{"ts", "ts", "const a: number = 1;\nexport default () => { let : = }", api.CodeRejected, 2},
		{"python", "python", "def main(input, env):\n    return [\n", api.CodeRejected, 2},
		{"no export", "js", "export const a = 1", api.CodeRejected, 0},
		{"loop", "js", "for (;;);\nexport default () => 1", api.CodeLimit, 0},
		{"python loop", "python", "while True:\n    pass\ndef main(input, env):\n    return 1\n", api.CodeLimit, 0},
		{"too large", "js", "export default () => 1;" + strings.Repeat(" ", 2<<20), api.CodeLimit, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := do(t, "PUT", functionPath(who, "f"), api.FunctionRequest{Language: tc.language, Code: tc.code})
			e := a.Error()
			if a.Status != http.StatusUnprocessableEntity || e == nil || e.Code != tc.want || tc.line > 0 && (e.Position == nil || e.Position.Line != tc.line) {
				t.Errorf("%d: %s", a.Status, a.Body)
			}
			r := invoke(t, who, "f", api.InvokeRequest{})
			wantResult(t, &r, "1")
		})
	}
	wantError(t, do(t, "PUT", functionPath(who, "a%20b"), api.FunctionRequest{Language: "js", Code: "export default () => 1"}), http.StatusBadRequest, api.CodeInvalidRequest, "function")
	wantError(t, do(t, "POST", functionPath(who, "none")+"/invoke", api.InvokeRequest{}), http.StatusNotFound, api.CodeNotFound, "function")
	wantError(t, do(t, "POST", functionPath(who, "f")+"/invoke", []byte(`{"code":"x"}`)), http.StatusBadRequest, api.CodeInvalidRequest, "code")
	// Another tenant's function of that name is another function, or none.
	other := tenant(t, harness.IsolatePrefix)
	wantError(t, do(t, "POST", functionPath(other, "f")+"/invoke", api.InvokeRequest{}), http.StatusNotFound, api.CodeNotFound, "function")
}

// TestFunctionHasWhatWasDeployed: bindings, hosts and limits of a call.
func TestFunctionHasWhatWasDeployed(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	deploy(t, who, "f", api.FunctionRequest{Language: "js", Code: `let calls = 0;
export default async (input, env) => { calls++; await env.KV.put('k', input); return [calls, await env.KV.get('k'), Object.keys(env)]; }`,
		Bindings: bindings("KV")})
	r := invoke(t, who, "f", api.InvokeRequest{Input: json.RawMessage(`7`)})
	wantResult(t, &r, `[1,7,["KV"]]`)
	if len(r.Calls) != 2 {
		t.Errorf("its calls are %+v", r.Calls)
	}
	wantError(t, do(t, "POST", functionPath(who, "f")+"/invoke", api.InvokeRequest{Bindings: bindings("DB")}), http.StatusForbidden, api.CodeDenied, "bindings.DB")
	wantError(t, do(t, "POST", functionPath(who, "f")+"/invoke", api.InvokeRequest{Outbound: &api.Outbound{Allow: []string{harness.APIHost}}}),
		http.StatusForbidden, api.CodeDenied, "outbound.allow[0]")
	deploy(t, who, "loop", api.FunctionRequest{Language: "js", Code: `const t = [1, 2, 3]; export default () => { for (;;) t.push(1); }`})
	for range 2 {
		if r := invoke(t, who, "loop", api.InvokeRequest{}); r.Status != api.StatusKilled || r.Error.Code != api.CodeLimit {
			t.Errorf("%s: %+v", r.Status, r.Error)
		}
	}
}

// TestFunctionsOutliveACrash: what was deployed is there after the daemon was
// killed, whole.
func TestFunctionsOutliveACrash(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	f := deploy(t, who, "f", api.FunctionRequest{Language: "js", Code: "const a = [1, 2]; export default (n) => n + a.length"})
	if err := sys.Kill(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	var g api.Function
	want(t, "GET", functionPath(who, "f"), nil, &g)
	if g.CodeSHA256 != f.CodeSHA256 || !g.Created.Equal(f.Created) || !g.Snapshot {
		t.Errorf("%+v became %+v", f, g)
	}
	r := invoke(t, who, "f", api.InvokeRequest{Input: json.RawMessage("1")})
	wantResult(t, &r, "3")
}

// TestFunctionCLI is a function's life on the command line.
func TestFunctionCLI(t *testing.T) {
	who, dir := tenant(t, harness.AgentPrefix), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lib"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"skill.ts":     "import { add } from './lib/add.ts';\nexport default (input: number): number => { console.log('adding'); return add(input); }",
		"lib/add.ts":   "export const add = (n: number): number => n + 1;",
		"lib/wrong.ts": "export const : = 1;",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	if r := ctl(t, "", "fn", "deploy", "-t", who, "add", file("skill.ts"), file("lib/add.ts")); r.Code != 0 || !strings.Contains(r.Stderr, "calls begin with its module evaluated") {
		t.Errorf("deploy: %+v", r)
	}
	if r := ctl(t, "", "fn", "invoke", "-t", who, "add", "--input", "41"); r.Code != 0 || strings.TrimSpace(r.Stdout) != "42" || !strings.Contains(r.Stderr, "adding") {
		t.Errorf("invoke: %+v", r)
	}
	var run api.Run
	if r := ctl(t, "", "--json", "fn", "invoke", "-t", who, "add", "--input", "1"); r.Code != 0 || json.Unmarshal([]byte(r.Stdout), &run) != nil || string(run.Result) != "2" || run.Function != "add" {
		t.Errorf("invoke as JSON: %+v", r)
	}
	if r := ctl(t, "", "fn", "list", "-t", who); r.Code != 0 || !strings.Contains(r.Stdout, "add") {
		t.Errorf("list: %+v", r)
	}
	if r := ctl(t, "", "fn", "deploy", "-t", who, "--replaces", "none", "add", file("skill.ts"), file("lib/add.ts")); r.Code != 3 || !strings.Contains(r.Stderr, "conflict") {
		t.Errorf("deploy over another one: %+v", r)
	}
	if r := ctl(t, "", "fn", "deploy", "-t", who, "bad", file("lib/wrong.ts")); r.Code != 3 || !strings.Contains(r.Stderr, "at: wrong.ts:1") {
		t.Errorf("deploy what is wrong: %+v", r)
	}
	for range 2 {
		if r := ctl(t, "", "fn", "rm", "-t", who, "add"); r.Code != 0 {
			t.Errorf("rm: %+v", r)
		}
	}
	if r := ctl(t, "", "fn", "invoke", "-t", who, "add"); r.Code != 3 || !strings.Contains(r.Stderr, "there is no function") {
		t.Errorf("invoke what is gone: %+v", r)
	}
}
