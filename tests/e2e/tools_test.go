package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// desk answers the binding DESK as a service does that has never heard of
// sandboxd: HTTP and JSON on a Unix socket.
type desk struct {
	mu    sync.Mutex
	calls []map[string]any
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var call map[string]any
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil || r.Method != "POST" || r.URL.Path != "/call" {
		http.Error(w, fmt.Sprint(r.Method, r.URL, err), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	d.calls = append(d.calls, call)
	d.mu.Unlock()
	args := call["args"].([]any)
	var answer any
	switch {
	case call["method"] == "echo":
		answer = map[string]any{"result": args[0]}
	case args[0].(map[string]any)["id"] == 1.0:
		answer = map[string]any{"result": map[string]any{"total": 12.5}}
	case args[0].(map[string]any)["id"] == 2.0:
		answer = map[string]any{"result": map[string]any{"total": "none"}}
	default:
		answer = map[string]any{"error": map[string]any{"message": "no such order"}}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func startDesk(t *testing.T) *desk {
	t.Helper()
	if err := os.Remove(harness.DeskSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", harness.DeskSocket)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{}
	s := &http.Server{Handler: d}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return d
}

// TestToolsOfAService: a binding that a service's socket answers, its schemas,
// and bytes both ways, in both languages.
func TestToolsOfAService(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	run := func(language, code string) *api.Run {
		var r api.Run
		want(t, "POST", tenantPath(who)+"/run", map[string]any{"language": language, "code": code, "bindings": bindings("DESK"),
			"input": map[string]any{"$bytes": "AP8B"}}, &r)
		return &r
	}
	const one = "export default async (i, env) => {\n  return await env.DESK.order({ id: 1 })\n}"
	r := run("js", one)
	if r.Error == nil || r.Error.Code != api.CodeBinding || !strings.Contains(r.Error.Message, "its service is not running; the operator has to start it") ||
		strings.Contains(r.Error.Message, harness.DeskSocket) || r.Error.Position == nil || r.Error.Position.Line != 2 || !strings.Contains(r.Error.SourceLine, "env.DESK.order") {
		t.Errorf("without a service: %+v", r.Error)
	}
	d := startDesk(t)
	for _, language := range []string{"js", "python"} {
		code := `export default async (input, env) => {
			const failed = async (id) => { try { await env.DESK.order({ id }) } catch (e) { return e.message } };
			return [await env.DESK.order({ id: 1 }), await failed("x"), await failed(2), await failed(3), input instanceof Uint8Array, await env.DESK.echo({ b: input })];
		}`
		if language == "python" {
			code = `def main(input, env):
    def failed(id):
        try:
            env.DESK.order(id=id)
        except BindingError as e:
            return str(e)
    return [env.DESK.order(id=1), failed('x'), failed(2), failed(3), isinstance(input, bytes), env.DESK.echo({'b': input})]
`
		}
		r := run(language, code)
		const expected = `[{"total":12.5},"DESK.order: argument.id is the string \"x\"; must be an integer",` +
			`"DESK.order failed through no fault of this code: its service gave a result that breaks its own schema (result.total must be a number)",` +
			`"no such order",true,{"b":{"$bytes":"AP8B"}}]`
		if string(r.Result) != expected {
			t.Errorf("%s: got %s %+v\nwant %s", language, r.Result, r.Error, expected)
		}
		var status []string
		for _, c := range r.Calls {
			status = append(status, c.Status)
		}
		if got := strings.Join(status, " "); got != "ok invalid_args invalid_result error ok" {
			t.Errorf("%s: on record: %s", language, got)
		}
		d.mu.Lock()
		last := d.calls[len(d.calls)-1]
		d.mu.Unlock()
		if last["tenant"] != who || last["run_id"] != r.RunID || last["binding"] != "DESK" || last["call_id"] == "" {
			t.Errorf("%s: the service saw %v", language, last)
		}
	}
	a := do(t, "POST", tenantPath(who)+"/run", map[string]any{"language": "js", "code": one,
		"bindings": map[string]any{"DESK": map[string]any{"methods": map[string]any{"order": map[string]any{"args": map[string]any{"type": "nothing"}}}}}})
	wantError(t, a, 400, api.CodeInvalidRequest, "bindings.DESK.methods.order.args.type")
}
