package daemon

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// startReloadable starts a daemon with a policy file.
func startReloadable(t *testing.T) (d *testDaemon, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "policy.yaml")
	d.write(t, path, testPolicy)
	d = startDaemonIn(t, t.TempDir(), testPolicy, func(c *Config) {
		c.LoadPolicy = func() (*policy.Policy, error) { return policy.Load(path) }
	})
	return d, path
}

func TestBuiltInPolicyIsNotReloaded(t *testing.T) {
	_, err := startDaemon(t).admin.ReloadPolicy(within(t))
	wantError(t, err, api.CodeUnsupported, "")
}

func (d *testDaemon) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A policy is put in force while everything runs: what it no longer grants
// ends, everything else goes on.
func TestPolicyReload(t *testing.T) {
	d, path := startReloadable(t)
	ctx := within(t)
	_, err := d.api.ReloadPolicy(ctx)
	wantError(t, err, api.CodeDenied, "")
	for _, tenant := range []string{"t-keeps", "t-short"} {
		if _, err := d.api.CreateJail(ctx, tenant, &api.JailRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	type ended struct {
		r   *api.Run
		err error
	}
	waits := js(`export default () => new Promise((done) => setTimeout(done, 15000))`)
	results := make(chan ended, 1)
	go func() {
		r, err := d.api.Run(ctx, "t-loses", waits)
		results <- ended{r, err}
	}()
	for deadline := time.Now().Add(20 * time.Second); d.pool.Stats().Running == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the run does not begin")
		}
	}
	changed := strings.Replace(testPolicy, `  "t-*": {profile: all}`, "  \"t-*\": {profile: all}\n  t-loses: {profile: other}", 1)
	changed = strings.Replace(changed, "profiles:\n", "profiles:\n  other:\n    isolate: {languages: [ts]}\n", 1)
	changed = strings.Replace(changed, "  t-short: {profile: short}", "  t-short: {profile: isolates}", 1)
	d.write(t, path, changed)
	got, err := d.admin.ReloadPolicy(ctx)
	if err != nil || got.Jails != 1 || got.Runs != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if e := <-results; e.err != nil || e.r.Status == api.StatusOK || e.r.Error == nil || e.r.Error.Code != api.CodeDenied {
		t.Errorf("the run ended %+v, %v", e.r, e.err)
	}
	for deadline := time.Now().Add(20 * time.Second); d.tenants.find("t-short") != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the jail lives on")
		}
	}
	if j, err := d.api.Jail(ctx, "t-keeps"); err != nil || j.State != "running" {
		t.Errorf("the other jail: %+v, %v", j, err)
	}
	if r, err := d.api.Run(ctx, "t-loses", js(`export default () => 1`)); err == nil && r.Status == api.StatusOK {
		t.Error("a run that the new policy does not grant")
	}
	if r, err := d.api.Run(ctx, "t-short", js(`export default () => 1`)); err != nil || r.Status != api.StatusOK {
		t.Errorf("what the new policy grants: %+v, %v", r, err)
	}
	// Faults leave everything as it is; so does a file that is not there.
	d.write(t, path, "version: 1\nprofles: {}\n")
	_, err = d.admin.ReloadPolicy(ctx)
	if e := wantError(t, err, api.CodeInvalidRequest, "policy"); e.Position == nil || e.Position.Line != 2 || !strings.Contains(e.Message, "old one stays") {
		t.Errorf("%+v", e)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, err = d.admin.ReloadPolicy(ctx)
	wantError(t, err, api.CodeInvalidRequest, "policy")
	if j, err := d.api.Jail(ctx, "t-keeps"); err != nil || j.State != "running" {
		t.Errorf("after faults: %+v, %v", j, err)
	}
	// An empty one grants nothing to anybody.
	d.write(t, path, "")
	if got, err := d.admin.ReloadPolicy(ctx); err != nil || got.Jails != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = d.api.Run(ctx, "t-keeps", js(`export default () => 1`))
	wantError(t, err, api.CodeDenied, "")
	log := d.auditLines(t)
	for _, want := range []string{`"event":"policy"`, `"event":"policy_refused"`, `profles`, `"cause":"policy"`} {
		if !strings.Contains(log, want) {
			t.Errorf("%s is not on record", want)
		}
	}
	// Nothing is put in force that cannot be put on record.
	d.write(t, path, testPolicy)
	if err := d.audit.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReloadPolicy(ctx, nil); err == nil {
		t.Error("reloaded without a record")
	}
	if _, err := d.policy.For("t-keeps"); !errors.Is(err, policy.ErrNoTenant) {
		t.Errorf("in force without a record: %v", err)
	}
}

func (d *testDaemon) auditLines(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(d.state("audit"), "audit-*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("audit files: %v, %v", files, err)
	}
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

func TestPolicyCheck(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	c, err := d.api.CheckPolicy(ctx, &api.PolicyCheckRequest{Policy: testPolicy})
	if err != nil || !c.OK || len(c.Problems) != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = d.api.CheckPolicy(ctx, &api.PolicyCheckRequest{Policy: "version: 2\nprofles: {}\n"})
	if err != nil || c.OK || len(c.Problems) != 2 || c.Problems[1].Line != 2 || c.Problems[1].Field != "profles" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := d.policy.For("t-a"); err != nil {
		t.Errorf("checking changed what is in force: %v", err)
	}
}

// A jail that is being made while the policy is replaced is held against the new
// one, too: nobody else would end it.
func TestJailMadeDuringReload(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	const tenant = "t-late"
	none, err := policy.Parse("test", []byte("version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := d.tenants.ref(tenant)
	defer d.tenants.unref(tenant, s)
	if !d.begin() {
		t.Fatal("the daemon stops")
	}
	j, err := d.createJail(ctx, tenant, policy.Caller{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.policy.Store(none)
	if n := d.endJails(ctx); n != 0 {
		t.Errorf("%d jails ended before they were made", n)
	}
	_, err = d.tenants.takeUp(s, j)
	if e := toAPI(err); err == nil || e.Code != api.CodeDenied {
		t.Errorf("the tenant has it: %v", err)
	}
	if err := j.awaitGone(ctx); err != nil {
		t.Error("the jail lives on")
	}
}

// So is a run whose plan was made by the old policy.
func TestRunPlannedDuringReload(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	none, err := policy.Parse("test", []byte("version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	req := js(`export default () => 1`)
	modules, main, err := checkRun(req)
	if err != nil {
		t.Fatal(err)
	}
	q := &request{http: httptest.NewRequestWithContext(ctx, "POST", "/", nil), w: httptest.NewRecorder(), peer: &peer{}, tenant: "t-a"}
	r := d.newRun(q, req, "", "")
	err = d.startRun(q, r, func() (*plan, error) {
		p, err := d.planRun(q.tenant, req, modules, main)
		d.policy.Store(none)
		if n := d.endRuns(); n != 0 {
			t.Errorf("%d runs ended before they were planned", n)
		}
		return p, err
	})
	if <-r.done; err != nil || r.record.Status == api.StatusOK || r.record.Error == nil || r.record.Error.Code != api.CodeDenied {
		t.Errorf("%+v, %v", r.record, err)
	}
}
