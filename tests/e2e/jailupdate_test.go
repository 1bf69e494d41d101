package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// TestJailUpdate changes limits of a jail that lives, while its processes go on.
func TestJailUpdate(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	wantError(t, do(t, "PATCH", jailPath(who), api.JailRequest{}), 404, api.CodeNotFound, "")
	exec(t, who, api.ExecRequest{Argv: []string{"sleep", "100000"}, Background: true, ExecID: "stays"})
	var before, after api.Jail
	want(t, "GET", jailPath(who), nil, &before)
	change := policy.Limits{OpenFiles: 100, Pids: 40, Bandwidth: 1 << 20}
	want(t, "PATCH", jailPath(who), api.JailRequest{Limits: &change, IdleTimeout: policy.Duration(9 * time.Minute), MaxLifetime: policy.Duration(50 * time.Minute)}, &after)
	change.Idle, change.Lifetime = policy.Duration(9*time.Minute), policy.Duration(50*time.Minute)
	if after.Limits != before.Limits.With(change) || !after.Deadline.Equal(before.Created.Add(50*time.Minute)) || after.Processes != before.Processes {
		t.Errorf("changed: %+v", after)
	}
	if got := strings.TrimSpace(sh(t, who, "ulimit -n")); got != "100" {
		t.Errorf("a command has %s descriptors", got)
	}
	// All or nothing: the good half of a bad request does not hold.
	wantError(t, do(t, "PATCH", jailPath(who), api.JailRequest{Limits: &policy.Limits{OpenFiles: 90, Memory: harness.JailMemory + 1}}), 400, api.CodeInvalidRequest, "limits.memory")
	wantError(t, do(t, "PATCH", jailPath(who), api.JailRequest{Limits: &policy.Limits{OpenFiles: 90}, Env: map[string]string{"A": "b"}}), 409, api.CodeConflict, "env")
	wantError(t, do(t, "PATCH", jailPath(who), []byte(`{"limits":{"open_files":90},"nonsense":1}`)), 400, api.CodeInvalidRequest, "nonsense")
	if got := strings.TrimSpace(sh(t, who, "ulimit -n")); got != "100" {
		t.Errorf("after what was refused a command has %s descriptors", got)
	}
	o := ctl(t, "", "--json", "jail", "update", who, "--open-files", "80", "--lifetime", "40m", "--bandwidth", "2MiB")
	var shown api.Jail
	if err := json.Unmarshal([]byte(o.Stdout), &shown); err != nil || o.Code != 0 || shown.Limits.OpenFiles != 80 || shown.Limits.Bandwidth != 2<<20 || shown.Limits.Pids != 40 {
		t.Errorf("sandboxctl: %d, %v: %s%s", o.Code, err, o.Stdout, o.Stderr)
	}
	for _, args := range [][]string{{"--memory", "1TiB"}, {"--memory", "much"}, {}} {
		code := 2
		if len(args) > 1 && args[1] == "1TiB" {
			code = 3
		}
		if o := ctl(t, "", append([]string{"jail", "update", who}, args...)...); o.Code != code {
			t.Errorf("sandboxctl jail update %q: exit code %d: %s", args, o.Code, o.Stderr)
		}
	}
	if p := do(t, "GET", jailPath(who)+"/processes/stays", nil); !strings.Contains(string(p.Body), `"running"`) {
		t.Errorf("the process that ran before: %s", p.Body)
	}
}

// TestJailBandwidth: what a jail sends takes as long as its limit says.
func TestJailBandwidth(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	want(t, "PUT", jailPath(who), api.JailRequest{Limits: &policy.Limits{Bandwidth: 512 << 10}}, nil)
	upload := func() time.Duration {
		t.Helper()
		began := time.Now()
		out := sh(t, who, "head -c 1000000 /dev/zero | curl -sS -m 60 -o /dev/null -w '%{http_code}' --data-binary @- https://"+harness.APIHost+"/v1/things")
		if out != "200" {
			t.Fatalf("an upload: %q", out)
		}
		return time.Since(began)
	}
	// A megabyte, less what the bucket holds.
	if took := upload(); took < 1500*time.Millisecond {
		t.Errorf("at 512 KiB a second a megabyte took %v", took)
	}
	want(t, "PATCH", jailPath(who), api.JailRequest{Limits: &policy.Limits{Bandwidth: 1 << 30}}, nil)
	began := time.Now()
	sh(t, who, "true") // what a command takes anyhow, on this machine now
	if took, idle := upload(), time.Since(began); took > 1500*time.Millisecond+2*idle {
		t.Errorf("without a limit to speak of it took %v", took)
	}
}
