package daemon

import (
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// TestWhatCountsAsActivity: what puts a jail's freezing off and what does not.
func TestWhatCountsAsActivity(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	if _, err := d.api.CreateJail(ctx, "t-a", &api.JailRequest{}); err != nil {
		t.Fatal(err)
	}
	long := sh("exec sleep 100")
	long.Background, long.ExecID = true, "bg"
	if _, err := d.api.Exec(ctx, "t-a", long); err != nil {
		t.Fatal(err)
	}
	// The background command's start and end are settled before.
	idleAt := func() time.Time {
		t.Helper()
		j, err := d.api.Jail(ctx, "t-a")
		if err != nil || j.IdleAt.IsZero() {
			t.Fatalf("%+v, %v", j, err)
		}
		return j.IdleAt
	}
	for _, step := range []struct {
		what    string
		extends bool
		do      func() error
	}{
		{"its status", false, func() error { _, err := d.api.Jail(ctx, "t-a"); return err }},
		{"the list of jails", false, func() error { _, err := d.api.Jails(ctx); return err }},
		{"the list of commands", false, func() error { _, err := d.api.Processes(ctx, "t-a"); return err }},
		{"a command's state", false, func() error { _, err := d.api.Process(ctx, "t-a", "bg"); return err }},
		{"touch", true, func() error { _, err := d.api.TouchJail(ctx, "t-a"); return err }},
		{"a file", true, func() error { return d.api.WriteFile(ctx, "t-a", "/workspace/f", strings.NewReader("x"), 0o600) }},
		{"a command", true, func() error { _, err := d.api.Exec(ctx, "t-a", sh("true")); return err }},
		{"a command that fails by itself", true, func() error { _, err := d.api.Exec(ctx, "t-a", sh("exit 3")); return err }},
		{"a file that is not there", false, func() error {
			f, err := d.api.ReadFile(ctx, "t-a", "/workspace/none")
			if err == nil {
				f.Close()
				t.Error("it is there")
			}
			return nil
		}},
		{"a program that is not there", false, func() error {
			_, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{Argv: []string{"no-such-program"}})
			wantError(t, err, api.CodeInvalidRequest, "argv[0]")
			return nil
		}},
		{"a change that is refused", false, func() error {
			_, err := d.api.UpdateJail(ctx, "t-a", &api.JailRequest{Workspace: "ephemeral"})
			wantError(t, err, api.CodeConflict, "workspace")
			return nil
		}},
		{"a request that is no request", false, func() error {
			_, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{})
			if err == nil {
				t.Error("a command without a program runs")
			}
			return nil
		}},
		{"a port on which nothing listens", false, func() error {
			f, err := d.dialJail(ctx, "t-a", 1)
			if err == nil {
				f.Close()
				t.Error("something listens on port 1")
			}
			return nil
		}},
		{"bytes of a preview", true, func() error { return d.previewActive(ctx, "t-a") }},
	} {
		before := idleAt()
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if after := idleAt(); after.After(before) != step.extends {
			t.Errorf("%s: idle at %v before, %v after", step.what, before, after)
		}
	}
}

// TestFailedRequestLeavesItFrozen: a jail that was idle for long enough is frozen
// again at once when what woke it fails.
func TestFailedRequestLeavesItFrozen(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	if _, err := d.api.CreateJail(ctx, "t-a", &api.JailRequest{IdleTimeout: policy.Duration(time.Second)}); err != nil {
		t.Fatal(err)
	}
	frozen := func() bool {
		j, err := d.api.Jail(ctx, "t-a")
		return err == nil && j.State == "frozen"
	}
	waitUntil(t, "it is frozen", frozen)
	before, err := d.api.Jail(ctx, "t-a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.api.Exec(ctx, "t-a", &api.ExecRequest{Argv: []string{"no-such-program"}})
	wantError(t, err, api.CodeInvalidRequest, "argv[0]")
	waitUntil(t, "it is frozen again", frozen)
	after, err := d.api.Jail(ctx, "t-a")
	if err != nil || !after.IdleAt.Equal(before.IdleAt) {
		t.Errorf("idle at %v before, %v after (%v)", before.IdleAt, after.IdleAt, err)
	}
}
