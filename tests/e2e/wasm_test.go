package e2e

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

func base64Of(wasm []byte) string { return base64.StdEncoding.EncodeToString(wasm) }

func TestWasmModule(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	r := run(t, who, api.RunRequest{Language: "wasm", Code: base64Of(harness.WasmCat()), Input: json.RawMessage(`{"n":[1,2]}`)})
	if r.Status != api.StatusOK || string(r.Result) != `{"n":[1,2]}` || r.Stdout != `{"n":[1,2]}` || r.ExitCode == nil || *r.ExitCode != 0 || r.Environment != api.EnvironmentIsolate {
		t.Errorf("%+v %+v, result %s, stdout %q", r, r.Error, r.Result, r.Stdout)
	}
	if u := r.Usage; u.CPU.Used == nil || u.MemoryPeak.Used == nil || *u.MemoryPeak.Used < 1<<16 {
		t.Errorf("usage %+v", u)
	}
	// What is not JSON is output and no result.
	r = run(t, who, api.RunRequest{Language: "wasm", Main: "a/cat.wasm", Modules: map[string]string{"a/cat.wasm": base64Of(harness.WasmCat()), "note.txt": "a file beside it"}})
	if r.Status != api.StatusOK || r.Result != nil || r.Stdout != "" {
		t.Errorf("%+v %+v", r, r.Error)
	}
}

func TestWasmBindings(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	call := func(input string) api.Run {
		return run(t, who, api.RunRequest{Language: "wasm", Code: base64Of(harness.WasmCall()), Input: json.RawMessage(input)})
	}
	if r := call(`{"binding":"KV","method":"put","args":["k",{"deep":[1]}]}`); r.Status != api.StatusOK || len(r.Calls) != 1 || r.Calls[0].Binding != "KV" {
		t.Fatalf("%+v %+v", r, r.Error)
	}
	if r := call(`{"binding":"KV","method":"get","args":["k"]}`); string(r.Result) != `{"value":{"deep":[1]}}` {
		t.Errorf("%+v %+v, result %s", r, r.Error, r.Result)
	}
	if got := js(t, who, `export default async (i, env) => env.KV.get("k")`); got != `{"deep":[1]}` {
		t.Errorf("JavaScript finds %s", got)
	}
	if r := call(`{"binding":"SECRETS","method":"get","args":[]}`); !strings.Contains(string(r.Result), "SECRETS.get is not granted; granted: DB.query") || len(r.Calls) != 0 {
		t.Errorf("%+v, result %s", r, r.Result)
	}
	if r := call(`{"binding":"fetch","method":"fetch","args":[{"url":"http://127.0.0.1/","method":"GET","headers":[]}]}`); !strings.Contains(string(r.Result), "fetch.fetch is not granted") {
		t.Errorf("%+v, result %s", r, r.Result)
	}
}

func TestWasmRefusals(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	for _, tt := range []struct {
		name, code string
		status     int
		want, say  string
	}{
		{"not base64", "not base64", http.StatusBadRequest, api.CodeInvalidRequest, "base64"},
		{"not Wasm", base64Of([]byte("#!/bin/sh")), http.StatusUnprocessableEntity, api.CodeRejected, "not a WebAssembly binary"},
		{"a foreign import", base64Of(harness.WasmForeign()), http.StatusUnprocessableEntity, api.CodeRejected, `"env"."emscripten_resize_heap"`},
	} {
		a := do(t, "POST", tenantPath(who)+"/run", api.RunRequest{Language: "wasm", Code: tt.code})
		if e := a.Error(); a.Status != tt.status || e == nil || e.Code != tt.want || !strings.Contains(e.Message, tt.say) {
			t.Errorf("%s: %d %s", tt.name, a.Status, a.Body)
		}
	}
	a := do(t, "POST", tenantPath(tenant(t, harness.IsolatePrefix))+"/run", api.RunRequest{Language: "wasm", Code: base64Of(harness.WasmCat())})
	if e := a.Error(); e == nil || e.Code != api.CodeDenied {
		t.Errorf("without a grant: %d %s", a.Status, a.Body)
	}
}

func TestWasmLoop(t *testing.T) {
	r := run(t, tenant(t, harness.AgentPrefix), api.RunRequest{Language: "wasm", Code: base64Of(harness.WasmLoop())})
	if r.Status != api.StatusKilled || r.Error == nil || r.Error.Limit != "cpu" || r.Error.Used == "" {
		t.Errorf("%+v %+v", r, r.Error)
	}
}

// TestStrictIsolation: code of every language runs the same in workers of the
// tenant's own.
func TestStrictIsolation(t *testing.T) {
	who := tenant(t, harness.StrictPrefix)
	for range 2 {
		if got := js(t, who, `export default () => { const was = globalThis.kept; globalThis.kept = 1; return was ?? "clean" }`); got != `"clean"` {
			t.Errorf("got %s", got)
		}
	}
	r := run(t, who, api.RunRequest{Language: "wasm", Code: base64Of(harness.WasmCat()), Input: json.RawMessage(`7`)})
	if string(r.Result) != "7" {
		t.Errorf("%+v %+v", r, r.Error)
	}
}

func TestCLIRunsWasm(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	file := filepath.Join(t.TempDir(), "cat.bin")
	if err := os.WriteFile(file, harness.WasmCat(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		stdin string
		args  []string
		says  string
	}{
		// By its magic number; what was printed is not printed again.
		{"", []string{"run", "-t", who, "--input", `{"a":1}`, file}, `{"a":1}`},
		{string(harness.WasmCat()), []string{"run", "-t", who, "--input", "5", "-"}, "5"},
	} {
		o := ctl(t, tt.stdin, tt.args...)
		if o.Code != 0 || strings.TrimSpace(o.Stdout) != tt.says {
			t.Errorf("exit %d, stdout %q, stderr %q", o.Code, o.Stdout, o.Stderr)
		}
	}
	if o := ctl(t, "", "run", "--json", "-t", who, "--input", "5", file); o.Code != 0 || !strings.Contains(o.Stdout, `"exit_code"`) {
		t.Errorf("exit %d, stdout %q", o.Code, o.Stdout)
	}
}
