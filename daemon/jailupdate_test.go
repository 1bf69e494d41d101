package daemon

import (
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

func TestUpdateOfAJail(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	update := func(r *api.JailRequest) (*api.Jail, error) { return d.api.UpdateJail(ctx, "t-a", r) }
	_, err := update(&api.JailRequest{IdleTimeout: policy.Duration(time.Second)})
	wantError(t, err, api.CodeNotFound, "")
	before, err := d.api.CreateJail(ctx, "t-a", &api.JailRequest{Limits: &policy.Limits{OpenFiles: 200, Memory: 128 << 20}, Env: map[string]string{"A": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	files := func() string {
		t.Helper()
		p, err := d.api.Exec(ctx, "t-a", sh("ulimit -n"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(p.Stdout)
	}
	if got := files(); got != "200" {
		t.Fatalf("it has %s descriptors", got)
	}
	// A request may raise what the jail has, up to what the policy grants.
	j, err := update(&api.JailRequest{Limits: &policy.Limits{OpenFiles: 300, Memory: 256 << 20, Bandwidth: 1 << 20}, IdleTimeout: policy.Duration(20 * time.Second),
		MaxLifetime: policy.Duration(5 * time.Minute), Env: map[string]string{"A": "b"}, Workspace: "persistent", Template: "host"})
	if err != nil {
		t.Fatal(err)
	}
	want := before.Limits.With(policy.Limits{OpenFiles: 300, Memory: 256 << 20, Bandwidth: 1 << 20, Idle: policy.Duration(20 * time.Second), Lifetime: policy.Duration(5 * time.Minute)})
	if j.Limits != want || j.IdleTimeout != want.Idle || !j.Deadline.Equal(before.Created.Add(5*time.Minute)) || !j.Created.Equal(before.Created) {
		t.Errorf("it is %+v", j)
	}
	if got := files(); got != "300" {
		t.Errorf("it has %s descriptors", got)
	}
	// What cannot be changes nothing, and is named.
	for _, bad := range []struct {
		req   api.JailRequest
		code  string
		field string
	}{
		{api.JailRequest{Limits: &policy.Limits{OpenFiles: 400, Memory: 1 << 40}}, api.CodeInvalidRequest, "limits.memory"},
		{api.JailRequest{Limits: &policy.Limits{OpenFiles: 400, CPU: policy.Duration(time.Second)}}, api.CodeInvalidRequest, "limits.cpu"},
		{api.JailRequest{Limits: &policy.Limits{OpenFiles: 400, Memory: 5 << 20}}, api.CodeInvalidRequest, "limits.memory"},
		{api.JailRequest{Limits: &policy.Limits{OpenFiles: 400}, MaxLifetime: 1}, api.CodeInvalidRequest, "max_lifetime"},
		{api.JailRequest{Limits: &policy.Limits{OpenFiles: 400}, MaxLifetime: policy.Duration(time.Hour)}, api.CodeInvalidRequest, "max_lifetime"},
		{api.JailRequest{Limits: &policy.Limits{OpenFiles: 400}, Workspace: "ephemeral"}, api.CodeConflict, "workspace"},
		{api.JailRequest{Limits: &policy.Limits{OpenFiles: 400}, Template: "other"}, api.CodeConflict, "template"},
		{api.JailRequest{Limits: &policy.Limits{OpenFiles: 400}, Env: map[string]string{"A": "c"}}, api.CodeConflict, "env"},
	} {
		_, err := update(&bad.req)
		wantError(t, err, bad.code, bad.field)
		if j, err := d.api.Jail(ctx, "t-a"); err != nil || j.Limits != want {
			t.Errorf("after %+v: %+v, %v", bad.req, j, err)
		}
	}
	if got := files(); got != "300" {
		t.Errorf("it has %s descriptors", got)
	}
	// A restored jail has what was changed.
	snap, err := d.api.Snapshot(ctx, "t-a", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.api.RestoreSnapshot(ctx, "t-a", snap.ID); err != nil {
		t.Fatal(err)
	}
	if got := files(); got != "300" {
		t.Errorf("restored it has %s descriptors", got)
	}
}

// TestUpdateOfALife: a shorter one ends the jail, also while it is frozen.
func TestUpdateOfALife(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	if _, err := d.api.CreateJail(ctx, "t-a", &api.JailRequest{}); err != nil {
		t.Fatal(err)
	}
	j := d.tenants.find("t-a")
	lived := time.Since(j.created)
	if _, err := d.api.UpdateJail(ctx, "t-a", &api.JailRequest{MaxLifetime: policy.Duration(lived + 3*time.Second)}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.api.FreezeJail(ctx, "t-a"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-j.gone:
	case <-ctx.Done():
		t.Fatal("the jail outlived its lifetime")
	}
	if cause := j.jail.Info().Cause; cause != "lifetime" {
		t.Errorf("it ended by %q", cause)
	}
}
