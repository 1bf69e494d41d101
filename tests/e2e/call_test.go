package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// deadline bounds one call; a test that hangs says where.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Scale(30*time.Second))
	t.Cleanup(cancel)
	return ctx
}

// tenant is a tenant of this test alone, under prefix; its jail goes with it.
func tenant(t *testing.T, prefix string) string {
	t.Helper()
	h := fnv.New32a()
	h.Write([]byte(t.Name()))
	name := fmt.Sprintf("%s%08x", prefix, h.Sum32())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Scale(30*time.Second))
		defer cancel()
		a, err := sys.API.Do(ctx, "DELETE", jailPath(name), nil)
		if err != nil || a.Status/100 != 2 && a.Error() == nil {
			t.Errorf("delete the jail of %s: %v", name, err)
		}
	})
	return name
}

func tenantPath(tenant string) string { return "/v1/tenants/" + tenant }
func jailPath(tenant string) string   { return tenantPath(tenant) + "/jail" }

// do sends a request and returns whatever is answered.
func do(t *testing.T, method, path string, body any, header ...string) *harness.Answer {
	t.Helper()
	a, err := sys.API.Do(deadline(t), method, path, body, header...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// want sends a request that must succeed and decodes its answer into v unless
// that is nil.
func want(t *testing.T, method, path string, body, v any) *harness.Answer {
	t.Helper()
	a := do(t, method, path, body)
	if a.Status/100 != 2 {
		t.Fatalf("%s %s: %d: %s", method, path, a.Status, a.Body)
	}
	if v != nil {
		if err := json.Unmarshal(a.Body, v); err != nil {
			t.Fatalf("%s %s: %v: %s", method, path, err, a.Body)
		}
	}
	return a
}

// wantError holds an answer against a status, a code and a field.
func wantError(t *testing.T, a *harness.Answer, status int, code, field string) *api.Error {
	t.Helper()
	e := a.Error()
	if e == nil {
		t.Fatalf("answer %d holds no error: %s", a.Status, a.Body)
	}
	if a.Status != status || e.Code != code || e.Field != field || e.Message == "" {
		t.Errorf("answer %d, code %q, field %q, message %q; want %d, %q, %q and a message", a.Status, e.Code, e.Field, e.Message, status, code, field)
	}
	return e
}

// run runs code and returns its record, however it ended.
func run(t *testing.T, tenant string, req api.RunRequest) api.Run {
	t.Helper()
	a := do(t, "POST", tenantPath(tenant)+"/run", req)
	if a.Status != http.StatusOK {
		t.Fatalf("run: %d: %s", a.Status, a.Body)
	}
	var r api.Run
	if err := json.Unmarshal(a.Body, &r); err != nil {
		t.Fatalf("run: %v: %s", err, a.Body)
	}
	if r.Receipt == nil || r.Receipt.Hash == "" || r.Phase == "" || r.RunID == "" {
		t.Errorf("the run's record lacks a receipt, a phase or an id: %s", a.Body)
	}
	noSecret(t, a.Body)
	return r
}

// js runs JavaScript that must end well and returns its result as text.
func js(t *testing.T, tenant, code string) string {
	t.Helper()
	r := run(t, tenant, api.RunRequest{Language: "js", Code: code, Bindings: bindings("DB", "KV", "LOG")})
	if r.Status != api.StatusOK {
		t.Fatalf("status %s: %+v", r.Status, r.Error)
	}
	return string(r.Result)
}

func bindings(names ...string) map[string]api.BindingRequest {
	m := map[string]api.BindingRequest{}
	for _, n := range names {
		m[n] = api.BindingRequest{}
	}
	return m
}

// exec runs a command in the tenant's jail to its end.
func exec(t *testing.T, tenant string, req api.ExecRequest) api.Process {
	t.Helper()
	var p api.Process
	a := want(t, "POST", jailPath(tenant)+"/exec", req, &p)
	noSecret(t, a.Body)
	return p
}

// sh runs a shell line that must exit with 0 and returns what it printed.
func sh(t *testing.T, tenant, line string) string {
	t.Helper()
	p := exec(t, tenant, api.ExecRequest{Command: line})
	if p.ExitCode == nil || *p.ExitCode != 0 {
		t.Fatalf("%s: %s\nstdout: %s\nstderr: %s", line, ended(p), p.Stdout, p.Stderr)
	}
	return p.Stdout
}

// ended says how a command ended.
func ended(p api.Process) string {
	code := "none"
	if p.ExitCode != nil {
		code = fmt.Sprint(*p.ExitCode)
	}
	return fmt.Sprintf("exit code %s, signal %q, timed out %t, out of memory %t, cause %q", code, p.Signal, p.TimedOut, p.OOMKilled, p.Cause)
}

// stream collects the events of a request until each says stop or it ends.
func stream(t *testing.T, method, path string, body any, each func(api.Event) bool) []api.Event {
	t.Helper()
	var events []api.Event
	err := sys.API.Stream(deadline(t), method, path, body, func(e api.Event) bool {
		events = append(events, e)
		return each == nil || each(e)
	})
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	for i, e := range events {
		if i > 0 && e.Seq != events[i-1].Seq+1 {
			t.Errorf("event %d follows %d", e.Seq, events[i-1].Seq)
		}
	}
	return events
}

// noSecret fails the test if text holds the world's token in any usual form.
func noSecret(t *testing.T, text []byte) {
	t.Helper()
	for _, form := range secretForms() {
		if strings.Contains(string(text), form) {
			t.Errorf("the token came out (as %.12s…): %.300s", form, text)
		}
	}
}

// eventually waits for a condition that comes about by itself.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(harness.Scale(10 * time.Second)); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it did not come about that %s", what)
		}
	}
}
