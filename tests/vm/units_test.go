package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

func TestActivatedByItsSocket(t *testing.T) {
	for name, value := range map[string]string{"ActiveState": "active", "SubState": "running", "Type": "notify", "NRestarts": "0", "Result": "success"} {
		if got := property(t, name); got != value {
			t.Errorf("%s=%s, want %s", name, got, value)
		}
	}
	if property(t, "StatusText") == "" {
		t.Error("the daemon sets no status line")
	}
	if got := property(t, "TriggeredBy"); !strings.Contains(got, "sandboxd.socket") || !strings.Contains(got, "sandboxd-admin.socket") {
		t.Errorf("TriggeredBy=%s", got)
	}
	a, err := sys.Admin.Do(deadline(t), "GET", "/v1/status", nil)
	if err != nil || a.Status != 200 {
		t.Errorf("the admin socket: %v", err)
	}
	if out := command(t, "systemctl", "is-system-running"); out != "running" {
		t.Errorf("the system is %s: %s", out, command(t, "systemctl", "--failed", "--no-legend"))
	}
}

func TestUnitsAreInOrder(t *testing.T) {
	units, err := filepath.Glob("/usr/lib/systemd/system/sandboxd*")
	if err != nil || len(units) != 4 {
		t.Fatalf("installed units: %q (%v)", units, err)
	}
	if out := command(t, "systemd-analyze", append([]string{"verify", "--man=no"}, units...)...); strings.Contains(out, "sandboxd") {
		t.Errorf("systemd-analyze verify: %s", out)
	}
}

// TestHardening: what systemd was asked for holds for the process.
func TestHardening(t *testing.T) {
	pid := property(t, "MainPID")
	status := procStatus(t, pid)
	for field, value := range map[string]string{
		"NoNewPrivs": "1", "Seccomp": "2", "CapAmb": "0000000000000000", "CapBnd": capabilities(0, 1, 3, 5, 6, 7, 8, 10, 12, 21, 24), "CapEff": capabilities(0, 1, 3, 5, 6, 7, 8, 10, 12, 21, 24),
	} {
		if status[field] != value {
			t.Errorf("%s is %s, want %s", field, status[field], value)
		}
	}
	mounts, err := os.ReadFile("/proc/" + pid + "/mounts")
	if err != nil {
		t.Fatal(err)
	}
	options := map[string][]string{}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 3 {
			options[f[1]] = strings.Split(f[3], ",")
		}
	}
	if !slices.Contains(options["/"], "ro") || !slices.Contains(options["/var/lib/sandboxd"], "rw") {
		t.Errorf("/ is mounted %q, /var/lib/sandboxd %q", options["/"], options["/var/lib/sandboxd"])
	}
	for _, hidden := range []string{"/root", "/home"} {
		if entries, err := os.ReadDir("/proc/" + pid + "/root" + hidden); err == nil && len(entries) > 0 {
			t.Errorf("the daemon sees %d files in %s", len(entries), hidden)
		}
	}
	out := command(t, "systemd-analyze", "security", "--no-pager", "sandboxd.service")
	lines := strings.Split(out, "\n")
	level := lines[len(lines)-1]
	t.Log(level)
	_, number, _ := strings.Cut(level, "sandboxd.service: ")
	if score, err := strconv.ParseFloat(strings.Fields(number + " x")[0], 64); err != nil || score > 5.4 {
		t.Errorf("exposure: %s", level)
	}
}

// capabilities is a set as /proc shows it.
func capabilities(numbers ...int) string {
	var set uint64
	for _, n := range numbers {
		set |= 1 << n
	}
	return fmt.Sprintf("%016x", set)
}

func procStatus(t *testing.T, pid string) map[string]string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.TrimSpace(value)
	}
	return fields
}

// TestRolesHoldNothing: the isolate workers and the egress proxy are users of
// their own, without capabilities, under a filter.
func TestRolesHoldNothing(t *testing.T) {
	main := property(t, "MainPID")
	host, err := os.Readlink("/proc/" + main + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	const who = harness.AgentPrefix + "roles"
	want(t, "POST", "/v1/tenants/"+who+"/run", api.RunRequest{Language: "js", Code: "export default () => 1"}, nil)
	roles := map[string]int{}
	for pid := range strings.FieldsSeq(command(t, "cat", "/sys/fs/cgroup/system.slice/sandboxd.service/supervisor/cgroup.procs")) {
		if pid == main {
			continue
		}
		cmdline, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err != nil {
			continue // it has ended meanwhile
		}
		args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		role := args[len(args)-1]
		roles[role]++
		status := procStatus(t, pid)
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			if status[set] != "0000000000000000" {
				t.Errorf("%s: %s is %s", role, set, status[set])
			}
		}
		uid, _ := strconv.Atoi(strings.Fields(status["Uid"])[0])
		if uid < 0x38000000 || status["NoNewPrivs"] != "1" || status["Seccomp"] != "2" {
			t.Errorf("%s: uid %d, no_new_privs %s, seccomp %s", role, uid, status["NoNewPrivs"], status["Seccomp"])
		}
		net, err := os.Readlink("/proc/" + pid + "/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		if role == "isolate-worker" && net == host {
			t.Error("an isolate worker is in the host's network namespace")
		}
	}
	if roles["isolate-worker"] < 1 || roles["netproxy"] != 1 {
		t.Errorf("roles %v beside the daemon", roles)
	}
}

func TestDoctorFindsNothingMissing(t *testing.T) {
	o, err := sys.Ctl(deadline(t), "", "doctor")
	if err != nil || o.Code != 0 {
		t.Errorf("%v, exit code %d:\n%s%s", err, o.Code, o.Stdout, o.Stderr)
	}
	var d api.Doctor
	want(t, "GET", "/v1/doctor", nil, &d)
	for _, c := range d.Checks {
		if c.Status != "ok" {
			t.Errorf("%+v", c)
		}
	}
}

func TestWatchdogIsFed(t *testing.T) {
	beat := func() string { return property(t, "WatchdogTimestampMonotonic") }
	first := beat()
	if first == "0" || first == "" {
		t.Fatal("no watchdog")
	}
	eventually(t, "the next beat comes", func() bool { return beat() != first })
}

// TestCrashIsRepaired: the service manager starts the daemon again, and nothing
// of the old one runs on.
func TestCrashIsRepaired(t *testing.T) {
	const who = harness.AgentPrefix + "crash"
	exec(t, who, api.ExecRequest{Argv: []string{"sleep", "200000"}, Background: true})
	before := property(t, "MainPID")
	if err := sys.Kill(deadline(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another daemon serves", func() bool {
		pid := property(t, "MainPID")
		return pid != "0" && pid != before && property(t, "ActiveState") == "active"
	})
	if n := property(t, "NRestarts"); n != "1" {
		t.Errorf("NRestarts=%s", n)
	}
	var list api.JailList
	want(t, "GET", "/v1/jails", nil, &list)
	if len(list.Jails) != 0 {
		t.Errorf("the new daemon has %+v", list.Jails)
	}
	if out := command(t, "ps", "-eo", "args"); strings.Contains(out, "sleep 200000") {
		t.Errorf("the old daemon's jail runs on:\n%s", out)
	}
	exec(t, who, api.ExecRequest{Argv: []string{"true"}})
	want(t, "DELETE", jailPath(who), nil, nil)
}

// TestStopLeavesNothing of what the service had: the whole cgroup goes.
func TestStopLeavesNothing(t *testing.T) {
	const who = harness.AgentPrefix + "stop"
	exec(t, who, api.ExecRequest{Command: "setsid sleep 300000 & trap '' TERM; sleep 300000", Background: true})
	began := time.Now()
	if err := sys.Stop(deadline(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped in %v", time.Since(began).Round(time.Millisecond))
	if result := property(t, "Result"); result != "success" {
		t.Errorf("Result=%s", result)
	}
	for _, path := range []string{"/sys/fs/cgroup/system.slice/sandboxd.service", "/run/sandboxd/api.sock", "/run/sandboxd/admin.sock", "/run/sandboxd/daemon"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if out := command(t, "ps", "-eo", "args"); strings.Contains(out, "sleep 300000") || strings.Contains(out, "sandbox-init") {
		t.Errorf("still running:\n%s", out)
	}
	if out := command(t, "ip", "-o", "link"); strings.Contains(out, "veth") {
		t.Errorf("links:\n%s", out)
	}
	if out := command(t, "sh", "-c", "grep -c sandboxd /proc/mounts || true"); out != "0" {
		t.Errorf("%s mounts of ours", out)
	}
	if err := sys.Restart(context.WithoutCancel(deadline(t))); err != nil {
		t.Fatal(err)
	}
	o, err := sys.Ctl(deadline(t), "", "audit", "verify")
	if err != nil || o.Code != 0 {
		t.Errorf("audit verify: %v, exit code %d: %s%s", err, o.Code, o.Stdout, o.Stderr)
	}
}
