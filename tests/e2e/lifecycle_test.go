package e2e

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
	"sandboxd/tests/internal/leftovers"
)

// busy starts two tenants' jails with processes, a daemonised one among them,
// and an isolate under way.
func busy(t *testing.T) (who, other string, running <-chan struct{}) {
	t.Helper()
	who, other = tenant(t, harness.AgentPrefix+"busy-"), tenant(t, harness.AgentPrefix+"rest-")
	sh(t, who, "echo kept > kept; setsid sleep 3000 >/dev/null 2>&1 & setsid sleep 3000 >/dev/null 2>&1 & true")
	exec(t, other, api.ExecRequest{Command: "trap '' TERM INT HUP; while :; do sleep 3000; done", Background: true, ExecID: "deaf"})
	done := make(chan struct{})
	started := make(chan struct{})
	go func() {
		defer close(done)
		// Its end by the daemon's is what the test is about.
		_ = sys.API.Stream(context.WithoutCancel(t.Context()), "POST", tenantPath(who)+"/run",
			api.RunRequest{Language: "js", Code: `export default () => new Promise(() => {})`, Bindings: bindings("KV")},
			func(e api.Event) bool {
				if e.Type == api.EventStarted {
					close(started)
				}
				return true
			})
	}()
	select {
	case <-started:
	case <-done:
	}
	return who, other, done
}

// idle is the machine with the daemon stopped: what a start and a stop may leave.
func idle(t *testing.T) leftovers.Inventory {
	t.Helper()
	if err := sys.Stop(deadline(t)); err != nil {
		t.Fatal(err)
	}
	before, err := leftovers.Take()
	if err != nil {
		t.Fatal(err)
	}
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	return before
}

func wantNothingLeft(t *testing.T, before leftovers.Inventory) {
	t.Helper()
	left, err := leftovers.Settle(before, harness.Scale(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
}

func TestStopLeavesNothing(t *testing.T) {
	before := idle(t)
	who, _, running := busy(t)
	if err := sys.Stop(deadline(t)); err != nil {
		t.Error(err)
	}
	<-running
	wantNothingLeft(t, before)
	for _, socket := range []string{sys.API.Socket, sys.Admin.Socket} {
		if _, err := os.Lstat(socket); err == nil {
			t.Errorf("%s is still there", socket)
		}
	}
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, who, "cat kept"); got != "kept\n" {
		t.Errorf("after a stop the workspace holds %q", got)
	}
	if v := verify(t); !v.OK {
		t.Errorf("the audit log after a stop: %+v", v.Problem)
	}
}

// TestCrashIsSweptUp: after SIGKILL nothing runs on, and the next start removes
// the rest.
func TestCrashIsSweptUp(t *testing.T) {
	before := idle(t)
	who, other, running := busy(t)
	if err := sys.Kill(deadline(t)); err != nil {
		t.Fatal(err)
	}
	<-running
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	var jails api.JailList
	want(t, "GET", "/v1/jails", nil, &jails)
	if len(jails.Jails) != 0 {
		t.Errorf("the new daemon has jails %+v", jails.Jails)
	}
	eventually(t, "the tenants' processes are gone", func() bool { return !strings.Contains(allCommands(t), "sleep 3000") })
	if got := sh(t, who, "cat kept"); got != "kept\n" {
		t.Errorf("after a crash the workspace holds %q", got)
	}
	sh(t, other, "true")
	if v := verify(t); !v.OK {
		t.Errorf("the audit log after a crash: %+v", v.Problem)
	}
	if err := sys.Stop(deadline(t)); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, before)
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
}

// allCommands are the command lines of all processes of the machine.
func allCommands(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, e := range entries {
		// A process that has just ended has no command line.
		if b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil {
			all.WriteString(strings.ReplaceAll(string(b), "\x00", " ") + "\n")
		}
	}
	return all.String()
}

// sparesReady waits until the daemon has made as many jails ahead as it keeps.
func sparesReady(t *testing.T) {
	t.Helper()
	eventually(t, "the jails that are kept ready are there", func() bool {
		var s api.Status
		want(t, "GET", "/v1/status", nil, &s)
		return s.Spares != nil && s.Spares.Ready == s.Spares.Size
	})
}

// wantNoMore waits until there is no more of each kind than before: the jails
// that are kept ready are others by now, but as many.
func wantNoMore(t *testing.T, before leftovers.Inventory) {
	t.Helper()
	eventually(t, "there is no more than before", func() bool {
		now, err := leftovers.Take()
		if err != nil {
			t.Fatal(err)
		}
		for kind := range now {
			if len(now[kind]) > len(before[kind]) {
				return false
			}
		}
		return true
	})
}

// TestJailLeavesNothing: what one jail owned is gone when DELETE answers, while
// its neighbours and the daemon go on.
func TestJailLeavesNothing(t *testing.T) {
	neighbour := tenant(t, harness.AgentPrefix+"stays-")
	exec(t, neighbour, api.ExecRequest{Argv: []string{"sleep", "4000"}, Background: true, ExecID: "stay"})
	sparesReady(t)
	before, err := leftovers.Take()
	if err != nil {
		t.Fatal(err)
	}
	who := tenant(t, harness.AgentPrefix+"goes-")
	for range 3 {
		exec(t, who, api.ExecRequest{Command: "setsid sleep 5000 & cp /bin/sleep /tmp/s; /tmp/s 5000", Background: true})
		want(t, "DELETE", jailPath(who), nil, nil)
		if all := allCommands(t); strings.Contains(all, "sleep 5000") || strings.Contains(all, "/tmp/s 5000") {
			t.Error("when DELETE answers, processes are still there")
		}
	}
	sparesReady(t)
	wantNoMore(t, before)
	var list api.ProcessList
	want(t, "GET", jailPath(neighbour)+"/processes", nil, &list)
	if text, _ := json.Marshal(list); !strings.Contains(string(text), `"running"`) {
		t.Errorf("the neighbour: %s", text)
	}
}
