package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/data"
)

func TestNothingRunsUnrecorded(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	if err := d.audit.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := d.api.Run(ctx, "t-a", js(`export default () => 1`))
	if err != nil || r.Status != api.StatusRefused || r.Error.Code != api.CodeInternal || r.Error.Hint == "" {
		t.Errorf("a run without a record: %+v, %v", r, err)
	}
	effect := js(`export default async (_, env) => { await env.KV.put("k", 1) }`)
	if r, err := d.api.Run(ctx, "t-a", effect); err != nil || r.Status != api.StatusRefused || r.Phase != "not_started" {
		t.Errorf("an effect without a record: %+v, %v", r, err)
	}
	if v, err := d.data.KV("t-a").Get(ctx, "k"); !errors.Is(err, data.ErrNotFound) {
		t.Errorf("the run has written %s, %v", v, err)
	}
	status, _ := post(t, d, "/v1/tenants/t-a/run", `{"language":"js","code":"export default () => 1"}`)
	if status != http.StatusServiceUnavailable {
		t.Errorf("the status is %d", status)
	}
	_, err = d.api.Exec(ctx, "t-a", &api.ExecRequest{Argv: []string{"true"}})
	if e := wantError(t, err, api.CodeInternal, ""); !e.Retryable {
		t.Error("not marked retryable")
	}
	if n := d.pool.Stats().Runs; n != 0 || len(d.tenants.all()) != 0 {
		t.Errorf("%d runs, %d jails without a record", n, len(d.tenants.all()))
	}
}

func TestAdminSocketAndDocuments(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	_, err := d.api.VerifyAudit(ctx)
	wantError(t, err, api.CodeDenied, "")
	if v, err := d.admin.VerifyAudit(ctx); err != nil || !v.OK || v.Records == 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
	// The admin socket may act for every tenant; what a tenant may do stays.
	_, err = d.admin.Query(ctx, "nobody", &api.SQLRequest{SQL: "select 1"})
	wantError(t, err, api.CodeDenied, "")
	doc, err := d.api.OpenAPI(ctx)
	if err != nil || !strings.Contains(string(doc), `"openapi": "3.1.0"`) {
		t.Errorf("openapi: %.80s, %v", doc, err)
	}
	s, err := d.api.Status(ctx)
	if err != nil || s.State != "ready" || s.Audit.Seq != 0 || s.Limits != "best-effort" || s.Pid != 0 || s.Isolates != nil || len(s.Sockets) != 0 {
		t.Errorf("status for a service: %+v, %v", s, err)
	}
	s, err = d.admin.Status(ctx)
	if err != nil || s.State != "ready" || s.Audit.Seq == 0 || s.Pid == 0 || s.Isolates == nil || len(s.Sockets) != 2 {
		t.Errorf("status for an administrator: %+v, %v", s, err)
	}
	view, err := d.api.Policy(ctx, "t-isolates")
	if err != nil || view.Profile.Name != "isolates" || len(view.Grants) == 0 {
		t.Errorf("policy: %+v, %v", view, err)
	}
	if _, err := d.api.Run(ctx, "t-a", js(`export default () => 1`)); err != nil {
		t.Fatal(err)
	}
	text, err := d.api.Metrics(ctx)
	if err != nil || !strings.Contains(text, `sandboxd_runs_total{environment="isolate",status="ok"} 1`) || strings.Contains(text, "t-a") {
		t.Errorf("metrics: %v\n%s", err, text)
	}
	runs, err := d.api.Runs(ctx, "t-a", api.StatusOK, time.Time{}, 10)
	if err != nil || len(runs.Runs) != 1 || runs.Runs[0].Result != nil {
		t.Errorf("runs: %+v, %v", runs, err)
	}
	if err := d.api.Health(ctx); err != nil {
		t.Errorf("health: %v", err)
	}
	if status, body := post(t, d, "/v1/status", "{}"); status != 405 || !strings.Contains(body, `"allowed":"GET"`) {
		t.Errorf("a wrong method: %d %s", status, body)
	}
	if status, body := post(t, d, "/v1/nowhere", "{}"); status != 404 {
		t.Errorf("a wrong path: %d %s", status, body)
	}
}

func TestKeyValueStore(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	for i := range 3 {
		if err := d.api.KVPut(ctx, "t-a", fmt.Sprintf("dir/%d ä", i), json.RawMessage(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := d.api.KVGet(ctx, "t-a", "dir/1 ä"); err != nil || string(v) != "1" {
		t.Errorf("got %s, %v", v, err)
	}
	if list, err := d.api.KVList(ctx, "t-a", "dir/", "dir/0 ä"); err != nil || !slices.Equal(list.Keys, []string{"dir/1 ä", "dir/2 ä"}) {
		t.Errorf("got %+v, %v", list, err)
	}
	if err := d.api.KVDelete(ctx, "t-a", "dir/1 ä"); err != nil {
		t.Error(err)
	}
	_, err := d.api.KVGet(ctx, "t-a", "dir/1 ä")
	wantError(t, err, api.CodeNotFound, "")
	if _, err := d.api.KVGet(ctx, "t-b", "dir/0 ä"); err == nil {
		t.Error("another tenant reads the key")
	}
	for _, key := range []string{"a//b", "a/../b", ".", "..", "%2F", "?", "/"} {
		if err := d.api.KVPut(ctx, "t-c", key, json.RawMessage(`1`)); err != nil {
			t.Errorf("%q: %v", key, err)
		}
		if list, err := d.api.KVList(ctx, "t-c", "", ""); err != nil || !slices.Equal(list.Keys, []string{key}) {
			t.Errorf("%q became %+v, %v", key, list, err)
		}
		if err := d.api.KVDelete(ctx, "t-c", key); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	wantError(t, d.api.KVPut(ctx, "t-a", "x", json.RawMessage("not json")), api.CodeInvalidRequest, "")
}
