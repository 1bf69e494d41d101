package e2e

import (
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// fill makes one of everything that a tenant can have, and gives the id of a
// recorded run.
func fill(t *testing.T, who string) (recorded string) {
	t.Helper()
	want(t, "PUT", tenantPath(who)+"/kv/key", []byte(`"value"`), nil)
	dbExec(t, who, "CREATE TABLE x (n)")
	want(t, "PUT", functionPath(who, "mine"), api.FunctionRequest{Language: "js", Code: "export default () => 1"}, nil)
	if r := invoke(t, who, "mine", api.InvokeRequest{}); r.Status != api.StatusOK {
		t.Fatalf("%+v", r.Error)
	}
	r := recordRun(t, who, api.RunRequest{Language: "js", Code: "export default () => 1"})
	want(t, "PUT", jailPath(who)+"/files/workspace/mine.txt", []byte("mine"), nil)
	want(t, "POST", jailPath(who)+"/snapshots", api.SnapshotRequest{}, nil)
	return r.RunID
}

// TestTenantIsDeleted: nothing of a tenant is left but its records in the audit
// log, another tenant has all of its own, and the name can be used again.
func TestTenantIsDeleted(t *testing.T) {
	who, other := tenant(t, harness.AgentPrefix+"gone-"), tenant(t, harness.AgentPrefix+"stays-")
	recorded, others := fill(t, who), fill(t, other)

	// A run that is under way ends with its tenant.
	running := make(chan api.Run, 1)
	go func() {
		running <- run(t, who, api.RunRequest{RunID: "deleted-" + who, Language: "js", Code: "export default () => new Promise((done) => setTimeout(done, 1e6))"})
	}()
	waitFor(t, func() bool {
		a, err := sys.API.Do(t.Context(), "GET", "/v1/runs/deleted-"+who, nil)
		return err == nil && a.Status == http.StatusOK
	})
	if got := ctl(t, "", "tenant", "rm", who); got.Code != 2 || !strings.Contains(got.Stderr, "--yes") {
		t.Fatalf("without --yes: %+v", got)
	}
	if got := ctl(t, "", "tenant", "rm", "--yes", who); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	if r := <-running; r.Error == nil || r.Error.Code != api.CodeCanceled {
		t.Errorf("the run under way: %s, %+v", r.Status, r.Error)
	}

	if found := named(t, who); len(found) > 0 {
		t.Errorf("left in the daemon's state: %s", found)
	}
	var keys api.KVList
	want(t, "GET", tenantPath(who)+"/kv", nil, &keys)
	var functions api.FunctionList
	want(t, "GET", tenantPath(who)+"/functions", nil, &functions)
	if len(keys.Keys) != 0 || len(functions.Functions) != 0 {
		t.Errorf("keys %v, functions %+v", keys.Keys, functions.Functions)
	}
	for _, path := range []string{jailPath(who), "/v1/runs/" + recorded, functionPath(who, "mine")} {
		if a := do(t, "GET", path, nil); a.Status != http.StatusNotFound {
			t.Errorf("GET %s: %d: %s", path, a.Status, a.Body)
		}
	}
	if a := do(t, "POST", "/v1/runs/"+recorded+"/replay", api.ReplayRequest{}); a.Status != http.StatusNotFound {
		t.Errorf("replay: %d: %s", a.Status, a.Body)
	}
	said := ""
	for _, text := range auditFiles(t) {
		said += string(text)
	}
	for _, event := range []string{`"tenant_delete"`, `"tenant_deleted"`} {
		if !strings.Contains(said, event) {
			t.Errorf("the audit log has no %s", event)
		}
	}
	if v := verify(t); !v.OK {
		t.Errorf("%+v", v)
	}

	// Twice is no error, and who comes again is as one that never was.
	want(t, "DELETE", tenantPath(who), nil, nil)
	want(t, "DELETE", tenantPath(other+"-never-was"), nil, nil)
	if fill(t, who); t.Failed() {
		t.Fatal("the tenant cannot come again")
	}
	if r := replay(t, others); r.Status != api.StatusOK {
		t.Errorf("another tenant's replay: %+v", r.Error)
	}
	if text := do(t, "GET", jailPath(other)+"/files/workspace/mine.txt", nil); string(text.Body) != "mine" {
		t.Errorf("another tenant's file: %d %s", text.Status, text.Body)
	}
	for _, bad := range []string{"/v1/tenants/UPPER", "/v1/tenants/" + strings.Repeat("a", 64), "/v1/tenants/..%2fx"} {
		if a := do(t, "DELETE", bad, nil); a.Status/100 != 4 {
			t.Errorf("%s: %d", bad, a.Status)
		}
	}
}

// named are the files and folders of the daemon's state with a name.
func named(t *testing.T, name string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(sys.State, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // it has gone meanwhile
		}
		if e.Name() == name {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
