package vm

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// initThreads is what a jail has on top of the tenant's limit, for sandbox-init.
const initThreads = 16

func TestLimitsAreEnforced(t *testing.T) {
	var s api.Status
	want(t, "GET", "/v1/status", nil, &s)
	if s.Limits != "enforced" || len(s.Warnings) > 0 {
		t.Errorf("limits %s, warnings %q", s.Limits, s.Warnings)
	}
	const who = harness.AgentPrefix + "enforced"
	var jail api.Jail
	want(t, "PUT", jailPath(who), api.JailRequest{}, &jail)
	defer want(t, "DELETE", jailPath(who), nil, nil)
	for _, name := range []string{"memory", "cpus", "pids"} {
		if !slices.Contains(jail.Enforced, name) {
			t.Errorf("%s is not among the enforced limits %q", name, jail.Enforced)
		}
	}
	group := jailCgroup(t, who)
	for file, value := range map[string]string{
		"memory.max": strconv.Itoa(harness.JailMemory), "memory.swap.max": "0", "pids.max": strconv.Itoa(harness.JailPids + initThreads), "memory.oom.group": "1",
		"cpu.max": fmt.Sprintf("%d 100000", int(harness.JailCPUs*100000)),
	} {
		b, err := os.ReadFile(group + "/" + file)
		if got := strings.TrimSpace(string(b)); err != nil || got != value {
			t.Errorf("%s is %q, want %q (%v)", file, got, value, err)
		}
	}
}

// jailCgroup is the folder of the tenant's jail below the service's own: what is
// above the group of one of its commands. It has not the tenant's name where the
// jail was built ahead.
func jailCgroup(t *testing.T, who string) string {
	t.Helper()
	own := strings.TrimSpace(exec(t, who, api.ExecRequest{Command: "cat /proc/self/cgroup"}).Stdout)
	// A jail sees it from the cgroup namespace's root, or from the host's.
	_, below, ok := strings.Cut(own, "/jails/")
	name, _, found := strings.Cut(below, "/")
	if !ok || !found {
		t.Fatalf("a command of %s is in %q", who, own)
	}
	return "/sys/fs/cgroup/system.slice/sandboxd.service/jails/" + name
}

// TestMemoryLimitEndsTheJail and only it.
func TestMemoryLimitEndsTheJail(t *testing.T) {
	neighbour(t)
	const who = harness.AgentPrefix + "hungry"
	exec(t, who, api.ExecRequest{Argv: []string{"sleep", "100000"}, Background: true, ExecID: "beside"})
	events := jailCgroup(t, who) + "/memory.events"
	ended := make(chan *harness.Answer, 1)
	go func() {
		defer close(ended)
		eats := api.ExecRequest{Argv: []string{"python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"}}
		if a, err := sys.API.Do(deadline(t), "POST", jailPath(who)+"/exec", eats); err == nil {
			ended <- a
		}
	}()
	eventually(t, "the limit is met", func() bool {
		b, err := os.ReadFile(events) // an error: it has ended already
		return err != nil || !strings.Contains(string(b), "\nmax 0\n")
	})
	began := time.Now()
	a := <-ended
	var p api.Process
	if a == nil || json.Unmarshal(a.Body, &p) != nil {
		t.Fatalf("the command was answered %+v", a)
	}
	if !p.OOMKilled || p.Signal != "SIGKILL" || p.ExitCode != nil {
		t.Errorf("out of memory %t, signal %q, exit code %v, cause %q", p.OOMKilled, p.Signal, p.ExitCode, p.Cause)
	}
	// Not minutes, in which the kernel looks for a page that it could drop.
	if took := time.Since(began); took > harness.Scale(2*time.Second) {
		t.Errorf("at its limit it took %v to end", took)
	}
	if p.Usage.MemoryPeak.Used == nil || *p.Usage.MemoryPeak.Used > harness.JailMemory || *p.Usage.MemoryPeak.Used < harness.JailMemory/2 {
		t.Errorf("peak %+v of %d", p.Usage.MemoryPeak, harness.JailMemory)
	}
	eventually(t, "the jail has ended", func() bool {
		a, err := sys.API.Do(deadline(t), "GET", jailPath(who), nil)
		return err == nil && a.Status == 404
	})
	if again := exec(t, who, api.ExecRequest{Argv: []string{"true"}}); again.ExitCode == nil || *again.ExitCode != 0 {
		t.Errorf("a new jail for the tenant: %+v", again)
	}
	want(t, "DELETE", jailPath(who), nil, nil)
}

// TestPidsLimitIsInTheReceipt of the command that met it, and of no later one.
func TestPidsLimitIsInTheReceipt(t *testing.T) {
	neighbour(t)
	const who = harness.AgentPrefix + "forks"
	p := exec(t, who, api.ExecRequest{Command: fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 60 & i=$((i+1)); done", 2*harness.JailPids)})
	found := false
	for _, d := range p.Denials {
		found = found || d.Kind == "limit" && d.What == "pids" && d.Rule == strconv.Itoa(harness.JailPids) && d.Count > 0
	}
	if !found {
		t.Errorf("%+v", p)
	}
	want(t, "DELETE", jailPath(who), nil, nil)
	if p := exec(t, who, api.ExecRequest{Argv: []string{"true"}}); len(p.Denials) != 0 {
		t.Errorf("of nothing: %+v", p.Denials)
	}
}

// TestPidsLimitStopsAForkBomb while others can start processes.
func TestPidsLimitStopsAForkBomb(t *testing.T) {
	neighbour(t)
	const who = harness.AgentPrefix + "bomb"
	group := jailCgroup(t, who)
	exec(t, who, api.ExecRequest{Command: "bomb() { bomb | bomb & }; bomb; sleep 100000", Background: true, ExecID: "bomb"})
	read := func(file string) int {
		b, err := os.ReadFile(group + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for field := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(field); err == nil {
				return n
			}
		}
		return 0
	}
	// The group's limit is somewhat higher than the tenant's: it bounds sandbox-init
	// as well.
	eventually(t, "the limit is met", func() bool { return read("pids.peak") >= harness.JailPids })
	if n := read("pids.peak"); n > harness.JailPids+initThreads {
		t.Errorf("%d processes at the peak, above the limit of %d", n, harness.JailPids)
	}
	if out := command(t, "sh", "-c", "echo the machine can fork"); out == "" {
		t.Error("the machine cannot fork")
	}
	began := time.Now()
	want(t, "DELETE", jailPath(who), nil, nil)
	if took := time.Since(began); took > harness.Scale(2*time.Second) {
		t.Errorf("it took %v to end", took)
	}
	if _, err := os.Stat(group); err == nil {
		t.Errorf("%s is still there", group)
	}
}

// TestCPUQuotaThrottles: half of one processor, whatever runs inside.
func TestCPUQuotaThrottles(t *testing.T) {
	neighbour(t)
	const who = harness.AgentPrefix + "spin"
	exec(t, who, api.ExecRequest{Argv: []string{"true"}})
	group := jailCgroup(t, who)
	used := func() time.Duration {
		b, err := os.ReadFile(group + "/cpu.stat")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(b), "usage_usec ")
		n, err := strconv.Atoi(strings.Fields(after)[0])
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(n) * time.Microsecond
	}
	exec(t, who, api.ExecRequest{Command: "while :; do :; done", Background: true, ExecID: "one"})
	exec(t, who, api.ExecRequest{Command: "while :; do :; done", Background: true, ExecID: "two"})
	before, began := used(), time.Now()
	eventually(t, "some processor time is used", func() bool { return used()-before > 3*time.Second })
	share := float64(used()-before) / float64(time.Since(began))
	if share > harness.JailCPUs*1.15 || share < harness.JailCPUs*0.5 {
		t.Errorf("it used %.2f processors, want %.2f", share, harness.JailCPUs)
	}
	var jail api.Jail
	want(t, "GET", jailPath(who), nil, &jail)
	if jail.Usage.CPU == nil || jail.Usage.CPU.Std() < 3*time.Second || jail.Usage.MemoryPeak == nil || jail.Usage.PidsPeak == nil {
		t.Errorf("the API's usage is %+v", jail.Usage)
	}
	want(t, "DELETE", jailPath(who), nil, nil)
}

// TestExecTimesOutUnderLoad: the deadline of a command that uses all it may.
func TestExecTimesOutUnderLoad(t *testing.T) {
	neighbour(t)
	const who = harness.AgentPrefix + "late"
	p := exec(t, who, api.ExecRequest{Command: "while :; do :; done & while :; do :; done", Timeout: policy.Duration(3 * time.Second)})
	if !p.TimedOut || p.Usage.CPU.Used == nil || p.Usage.CPU.Used.Std() <= 0 {
		t.Errorf("timed out %t, usage %+v", p.TimedOut, p.Usage)
	}
	want(t, "DELETE", jailPath(who), nil, nil)
}
