package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// cgroupFile is what a file of the tenant's jail's group says.
func cgroupFile(t *testing.T, who, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(jailCgroup(t, who), file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func wantRefused(t *testing.T, who string, req api.JailRequest, field string) {
	t.Helper()
	a, err := sys.API.Do(deadline(t), "PATCH", jailPath(who), req)
	if err != nil {
		t.Fatal(err)
	}
	if e := a.Error(); e == nil || e.Field != field {
		t.Errorf("%+v: %d %s", req.Limits, a.Status, a.Body)
	}
}

// TestIOIsLimited: writes of the disk take as long as the limit says, and less
// when it is raised.
func TestIOIsLimited(t *testing.T) {
	const who = harness.AgentPrefix + "io"
	var j api.Jail
	want(t, "PUT", jailPath(who), api.JailRequest{Limits: &policy.Limits{IOBytes: 1 << 20, IOOps: 1000}}, &j)
	defer want(t, "DELETE", jailPath(who), nil, nil)
	if !slices.Contains(j.Enforced, "io") {
		t.Errorf("enforced are %q", j.Enforced)
	}
	if got := cgroupFile(t, who, "io.max"); !strings.HasSuffix(got, "rbps=1048576 wbps=1048576 riops=1000 wiops=1000") {
		t.Errorf("io.max is %q", got)
	}
	write := func() time.Duration {
		t.Helper()
		began := time.Now()
		wantOutput(t, who, "dd if=/dev/zero of=f bs=64k count=80 oflag=direct 2>/dev/null; stat -c %s f; rm f", "5242880\n")
		return time.Since(began)
	}
	slow := write()
	if slow < 4*time.Second {
		t.Errorf("5 MiB at 1 MiB a second took %v", slow)
	}
	want(t, "PATCH", jailPath(who), api.JailRequest{Limits: &policy.Limits{IOBytes: 1 << 30, IOOps: 100000}}, nil)
	if fast := write(); fast > slow/2 {
		t.Errorf("at 1 GiB a second it took %v, at 1 MiB %v", fast, slow)
	}
}

// TestUpdateHolds: what PATCH changes the kernel holds at once, the image of a
// tenant's files included; what it cannot hold it refuses as a whole.
func TestUpdateHolds(t *testing.T) {
	const who = harness.AgentPrefix + "update"
	want(t, "PUT", jailPath(who), api.JailRequest{Limits: &policy.Limits{Disk: 40 << 20, Inodes: 1000, Memory: 128 << 20, Pids: 40}}, nil)
	defer want(t, "DELETE", jailPath(who), nil, nil)
	wantOutput(t, who, "echo kept > kept; head -c 60000000 /dev/zero > big || echo full; rm big", "full\n")
	want(t, "PATCH", jailPath(who), api.JailRequest{Limits: &policy.Limits{Disk: 100 << 20, Memory: harness.JailMemory, Pids: harness.JailPids, CPUs: 0.25}}, nil)
	for file, value := range map[string]string{
		"memory.max": fmt.Sprint(harness.JailMemory), "pids.max": fmt.Sprint(harness.JailPids + initThreads), "cpu.max": "25000 100000",
	} {
		if got := cgroupFile(t, who, file); got != value {
			t.Errorf("%s is %q, want %q", file, got, value)
		}
	}
	want(t, "PATCH", jailPath(who), api.JailRequest{Limits: &policy.Limits{CPUs: harness.JailCPUs}}, nil)
	wantOutput(t, who, "cat kept; head -c 60000000 /dev/zero > big && echo fits; head -c 60000000 /dev/zero > more || echo full; rm big more", "kept\nfits\nfull\n")
	// Not less than it uses, and nothing of a request that fails.
	exec(t, who, api.ExecRequest{Argv: []string{"python3", "-c", "x = bytearray(80 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('holds', flush=True)\nimport time; time.sleep(100000)"}, Background: true, ExecID: "holds"})
	want(t, "POST", jailPath(who)+"/processes/holds/wait", api.WaitRequest{LogRegexp: "holds", Timeout: policy.Duration(harness.Scale(20 * time.Second))}, nil)
	wantRefused(t, who, api.JailRequest{Limits: &policy.Limits{Pids: 32, Memory: 64 << 20}}, "limits.memory")
	wantRefused(t, who, api.JailRequest{Limits: &policy.Limits{Pids: 32, Disk: 50 << 20}}, "limits.disk")
	if got := cgroupFile(t, who, "memory.max") + " " + cgroupFile(t, who, "pids.max"); got != fmt.Sprint(harness.JailMemory, harness.JailPids+initThreads) {
		t.Errorf("after what was refused memory.max and pids.max are %s", got)
	}
	want(t, "PATCH", jailPath(who), api.JailRequest{Limits: &policy.Limits{Memory: 160 << 20}}, nil)
	var p api.Process
	want(t, "GET", jailPath(who)+"/processes/holds", nil, &p)
	if p.State != "running" {
		t.Errorf("the process that ran is %+v", p)
	}
}

// TestFrozenMemoryIsReclaimed: what a frozen jail has cached goes back to the
// host, and its programs go on where they were.
func TestFrozenMemoryIsReclaimed(t *testing.T) {
	const who = harness.AgentPrefix + "cold"
	defer want(t, "DELETE", jailPath(who), nil, nil)
	exec(t, who, api.ExecRequest{Command: "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.1; done", Background: true, ExecID: "counts"})
	wantOutput(t, who, "head -c 60000000 /dev/zero > f; cat f > /dev/null; echo read", "read\n")
	now := func() int64 {
		t.Helper()
		var j api.Jail
		want(t, "GET", jailPath(who), nil, &j)
		if j.Usage.MemoryNow == nil {
			t.Fatalf("%+v", j.Usage)
		}
		return *j.Usage.MemoryNow
	}
	before := now()
	if before < 50<<20 {
		t.Fatalf("only %d bytes are cached", before)
	}
	want(t, "POST", jailPath(who)+"/freeze", nil, nil)
	eventually(t, "its memory is reclaimed", func() bool { return now() < before/4 })
	t.Logf("%d KiB before, %d KiB frozen", before>>10, now()>>10)
	wantOutput(t, who, "a=$(cat count); while [ \"$(cat count)\" = \"$a\" ]; do sleep 0.1; done; cat f | wc -c", "60000000\n")
}
