package jail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDestroyOfAThousandProcesses: when Destroy answers, all is gone, however
// many there were, and it can be asked again. Under a second on a machine that has
// nothing else to do; the bound is for one that has.
func TestDestroyOfAThousandProcesses(t *testing.T) {
	m := testManager(t)
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{Pids: 1200}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", "trap '' TERM HUP INT; i=0; while [ $i -lt 1000 ]; do setsid sleep 100000 & i=$((i+1)); done; echo all; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	for ev, err := range p.Events(t.Context(), 0, true) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(ev.Data), "all") {
			break
		}
	}
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", j.pid))
	if err != nil {
		t.Fatal(err)
	}
	if n := processesIn(t, namespace); n < 1000 {
		t.Fatalf("there are %d processes", n)
	}
	began := time.Now()
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("%v", took.Round(time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if n := processesIn(t, namespace); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	if _, err := os.Lstat(string(j.cgroup)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group: %v", err)
	}
	for range 2 {
		if err := j.Destroy(t.Context(), "again"); err != nil || j.Info().Cause != "test" {
			t.Errorf("again: %v, cause %q", err, j.Info().Cause)
		}
	}
}

// processesIn counts the host's processes in a pid namespace.
func processesIn(t *testing.T, namespace string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range all {
		// An error: it is no more.
		if ns, err := os.Readlink(link); err == nil && ns == namespace {
			n++
		}
	}
	return n
}
