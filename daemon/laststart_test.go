package daemon

import (
	"strings"
	"testing"

	"sandboxd/daemon/api"
)

// TestNextStartKnowsHowAJailEnded: a daemon that stops ends its jails with a cause
// that is on record for the next, and keeps their files.
func TestNextStartKnowsHowAJailEnded(t *testing.T) {
	dir := t.TempDir()
	d := startDaemonIn(t, dir, testPolicy)
	ctx := within(t)
	if p, err := d.api.Exec(ctx, "t-a", sh("echo kept > kept")); err != nil || *p.ExitCode != 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	if p, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{Command: "exec sleep 1000", Background: true}); err != nil || p.State != "running" {
		t.Fatalf("%+v, %v", p, err)
	}
	d.stop(t)
	d = startDaemonIn(t, dir, testPolicy)
	_, err := d.api.Jail(ctx, "t-a")
	if e := wantError(t, err, api.CodeNotFound, ""); !strings.Contains(e.Message, "daemon_stop") {
		t.Errorf("the next daemon says %q", e.Message)
	}
	if p, err := d.api.Exec(ctx, "t-a", sh("cat kept")); err != nil || p.Stdout != "kept\n" {
		t.Errorf("its files: %+v, %v", p, err)
	}
}
