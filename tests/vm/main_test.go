package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

var sys *harness.System

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if !harness.UnderSystemd() {
		fmt.Fprintln(os.Stderr, "vm: these tests replace the machine's sandboxd; they run in a virtual one: make vm-test")
		return 1
	}
	ctx := context.Background()
	var err error
	began := time.Now()
	if sys, err = harness.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "vm: the system did not start:", err)
		return 1
	}
	fmt.Printf("vm: the first request activated the daemon and was answered after %v\n", time.Since(began).Round(time.Millisecond))
	code := m.Run()
	if code != 0 {
		log := sys.Log()
		fmt.Fprintln(os.Stderr, "vm: what sandboxd said:\n"+log[max(0, len(log)-16<<10):])
	}
	if err := sys.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "vm: the system did not stop well:", err)
		return 1
	}
	return code
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Scale(30*time.Second))
	t.Cleanup(cancel)
	return ctx
}

// command runs a program of the machine and returns what it printed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := osexec.CommandContext(deadline(t), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// property is one of the service's, as systemd sees it.
func property(t *testing.T, name string) string {
	t.Helper()
	return command(t, "systemctl", "show", "-P", name, "sandboxd.service")
}

// want sends a request that must succeed.
func want(t *testing.T, method, path string, body, v any) {
	t.Helper()
	a, err := sys.API.Do(deadline(t), method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if a.Status/100 != 2 {
		t.Fatalf("%s %s: %d: %s", method, path, a.Status, a.Body)
	}
	if v != nil {
		if err := json.Unmarshal(a.Body, v); err != nil {
			t.Fatalf("%s %s: %v: %s", method, path, err, a.Body)
		}
	}
}

func jailPath(tenant string) string { return "/v1/tenants/" + tenant + "/jail" }

func exec(t *testing.T, tenant string, req api.ExecRequest) api.Process {
	t.Helper()
	var p api.Process
	want(t, "POST", jailPath(tenant)+"/exec", req, &p)
	return p
}

// neighbour is a jail with a process that a test must not disturb; the check
// runs at the test's end.
func neighbour(t *testing.T) {
	t.Helper()
	const name = harness.AgentPrefix + "neighbour"
	exec(t, name, api.ExecRequest{Argv: []string{"sleep", "100000"}, Background: true, ExecID: "stay"})
	pid := property(t, "MainPID")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Scale(30*time.Second))
		defer cancel()
		a, err := sys.API.Do(ctx, "GET", jailPath(name)+"/processes/stay", nil)
		if err != nil || !strings.Contains(string(a.Body), `"running"`) {
			t.Errorf("the neighbour's process did not stay: %v %s", err, a.Body)
		}
		if a, err := sys.API.Do(ctx, "POST", jailPath(name)+"/exec", api.ExecRequest{Argv: []string{"true"}}); err != nil || a.Status != 200 {
			t.Errorf("the neighbour cannot start a command: %v %s", err, a.Body)
		}
		if now, err := sys.Pid(ctx); err != nil || fmt.Sprint(now) != pid {
			t.Errorf("the daemon was %s and is %d (%v)", pid, now, err)
		}
		if _, err := sys.API.Do(ctx, "DELETE", jailPath(name), nil); err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(harness.Scale(10 * time.Second)); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it did not come about that %s", what)
		}
	}
}
