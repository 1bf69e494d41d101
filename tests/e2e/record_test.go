package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

func verify(t *testing.T) api.AuditVerdict {
	t.Helper()
	a, err := sys.Admin.Do(deadline(t), "GET", "/v1/audit/verify", nil)
	if err != nil {
		t.Fatal(err)
	}
	var v api.AuditVerdict
	if err := json.Unmarshal(a.Body, &v); err != nil {
		t.Fatalf("%d: %v: %s", a.Status, err, a.Body)
	}
	return v
}

// auditFiles are the files of the log, and their lines.
func auditFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	dir := filepath.Join(sys.State, "audit")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && strings.Contains(e.Name(), "json") {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			files[filepath.Join(dir, e.Name())] = b
		}
	}
	if len(files) == 0 {
		t.Fatalf("no audit log in %s", dir)
	}
	return files
}

func TestEverythingIsOnRecord(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	r := fetchRun(t, who, `export default async () => (await fetch("https://`+harness.APIHost+`/v1/recorded")).status`, harness.APIHost)
	p := exec(t, who, api.ExecRequest{Command: "curl -s -m 5 https://" + harness.DeniedHost + "/refused; exit 9"})
	refused := do(t, "POST", tenantPath(harness.Stranger)+"/run", api.RunRequest{Language: "js", Code: "1", RunID: "strangers-" + who})
	if refused.Status != http.StatusForbidden {
		t.Fatalf("a stranger's run: %d", refused.Status)
	}
	var text []byte
	for _, b := range auditFiles(t) {
		text = append(text, b...)
	}
	noSecret(t, text)
	var lines []string
	for line := range strings.Lines(string(text)) {
		lines = append(lines, line)
	}
	tests := map[string][]string{
		"the run":              {`"kind":"run"`, r.RunID, who, r.CodeSHA256, r.Receipt.Hash},
		"the exec":             {`"kind":"exec"`, p.ExecID, who},
		"the granted request":  {`"kind":"egress"`, harness.APIHost, r.RunID, `"allowed":true`, harness.TokenName},
		"the refused request":  {`"kind":"egress"`, harness.DeniedHost, who, `"allowed":false`},
		"the refused run":      {`"kind":"run"`, harness.Stranger, "strangers-" + who},
		"the start of all":     {`"kind":"start"`},
		"the jail":             {`"kind":"jail"`, who},
		"who asked, by number": {`"uid":0`, r.RunID},
	}
	for what, words := range tests {
		found := false
		for _, line := range lines {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			found = found || all
		}
		if !found {
			t.Errorf("no line of the audit log tells of %s: %q", what, words)
		}
	}
	if v := verify(t); !v.OK || v.Records == 0 {
		t.Errorf("verdict %+v", v)
	}
}

// TestTamperingIsFound changes one byte of the log, looks, and puts it back.
func TestTamperingIsFound(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	run(t, who, api.RunRequest{Language: "js", Code: "export default () => 1"})
	run(t, who, api.RunRequest{Language: "js", Code: "export default () => 2"})
	var file string
	var text []byte
	for f, b := range auditFiles(t) {
		if bytes.Contains(b, []byte(who)) {
			file, text = f, b
		}
	}
	at := bytes.Index(text, []byte(who))
	if at < 0 {
		t.Fatal("the tenant is in no file of the log")
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{who[0] + 1}, int64(at)); err != nil {
		t.Fatal(err)
	}
	v := verify(t)
	o, ctlErr := sys.Ctl(deadline(t), "", "audit", "verify")
	if _, err := f.WriteAt([]byte{who[0]}, int64(at)); err != nil {
		t.Fatal(err)
	}
	line := bytes.Count(text[:at], []byte("\n")) + 1
	if v.OK || v.Problem == nil || v.Problem.Kind != "changed" || v.Problem.Line != line {
		t.Errorf("verdict %+v, problem %+v; line %d was changed", v, v.Problem, line)
	}
	if ctlErr != nil || o.Code == 0 || !strings.Contains(o.Stdout+o.Stderr, "changed") {
		t.Errorf("sandboxctl audit verify: %v, code %d: %s%s", ctlErr, o.Code, o.Stdout, o.Stderr)
	}
	if v := verify(t); !v.OK {
		t.Errorf("after it was put back: %+v", v.Problem)
	}
}

func TestStatusDoctorMetrics(t *testing.T) {
	var s api.Status
	want(t, "GET", "/v1/status", nil, &s)
	if s.State != "ready" || s.Version == "" || s.Isolates.Workers < 1 || s.Audit.Error != "" || s.Audit.Seq == 0 {
		t.Errorf("status %+v", s)
	}
	if pid, err := sys.Pid(deadline(t)); err != nil || s.Pid != pid {
		t.Errorf("pid %d, want %d (%v)", s.Pid, pid, err)
	}
	if harness.UnderSystemd() && s.Limits != "enforced" {
		t.Errorf("limits are %s, warnings %q", s.Limits, s.Warnings)
	}
	if s.Limits != "enforced" && len(s.Warnings) == 0 {
		t.Error("best effort without a warning")
	}
	var d api.Doctor
	want(t, "GET", "/v1/doctor", nil, &d)
	if len(d.Checks) < 8 {
		t.Errorf("the doctor looks at %d things", len(d.Checks))
	}
	for _, c := range d.Checks {
		if c.Name == "" || c.Found == "" || c.Status != "ok" && (c.Remedy == "" || c.Consequence == "") {
			t.Errorf("check %+v", c)
		}
	}
	a := want(t, "GET", "/metrics", nil, nil)
	if !strings.Contains(string(a.Body), "# TYPE sandboxd_") {
		t.Errorf("metrics: %.300s", a.Body)
	}
	var doc struct {
		OpenAPI string                    `json:"openapi"`
		Paths   map[string]map[string]any `json:"paths"`
	}
	want(t, "GET", "/v1/openapi.json", nil, &doc)
	if !strings.HasPrefix(doc.OpenAPI, "3.1") || len(doc.Paths) < 20 {
		t.Errorf("OpenAPI %q with %d paths", doc.OpenAPI, len(doc.Paths))
	}
}

func TestPolicyIsShown(t *testing.T) {
	var v api.PolicyView
	want(t, "GET", tenantPath(tenant(t, harness.AgentPrefix))+"/policy", nil, &v)
	if v.Profile == nil || v.Profile.Jail == nil || v.Profile.Jail.Limits.Pids != harness.JailPids || len(v.Profile.Egress) != 2 {
		t.Errorf("%+v", v)
	}
	wantError(t, do(t, "GET", tenantPath(harness.Stranger)+"/policy", nil), 403, api.CodeDenied, "")
}
