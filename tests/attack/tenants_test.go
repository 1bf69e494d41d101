package attack

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"sandboxd/jail"
)

// leaveCanary starts the probe that leaves traces and returns what it left, and
// a function that ends it.
func leaveCanary(t *testing.T, j *jail.Jail, word string) (left string, end func()) {
	t.Helper()
	p, err := j.Exec(t.Context(), jail.ExecSpec{ID: "canary", Argv: []string{"/workspace/probe", "leave", word}, Stdin: true, Output: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for e, err := range p.Events(ctx, 0, true) {
		if err != nil || e.Kind == jail.EventExit {
			t.Fatalf("the canary ended: %+v, %v", e, err)
		}
		if e.Kind == jail.EventStdout {
			line, err := bufio.NewReader(strings.NewReader(string(e.Data))).ReadString('\n')
			if err != nil {
				t.Fatalf("the canary printed %q", e.Data)
			}
			left = strings.TrimSpace(line)
			break
		}
	}
	return left, func() {
		if err := p.Stdin().(io.Closer).Close(); err != nil {
			t.Error(err)
		}
		if _, err := p.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// everything is what a canary leaves in a jail that lets it.
const everything = "/workspace/canary, /tmp/canary, /dev/shm/canary, /var/tmp/canary, /home/user/canary, " +
	"shared memory, semaphore, message queue, abstract socket"

// notFound is what another tenant finds of it.
var notFound = map[string]string{
	"/workspace/canary": "ENOENT", "/tmp/canary": "ENOENT", "/dev/shm/canary": "ENOENT", "/var/tmp/canary": "ENOENT",
	"/home/user/canary": "ENOENT", "shared memory": "ENOENT", "semaphore": "ENOENT", "message queue": "ENOENT",
	"abstract socket": "ECONNREFUSED", "processes": "",
}

// One tenant sees nothing of another one who is there at the same time, nor of
// the one who had the place before (F04, F06).
func TestTenantsSeeNothingOfEachOther(t *testing.T) {
	a, b := newJail(t, "tenant-a"), newJail(t, "tenant-b")
	left, end := leaveCanary(t, a, "feathers")
	if left != everything {
		t.Errorf("the canary left %q, want %q: what it cannot leave proves nothing", left, everything)
	}
	seen := decode[map[string]string](t, b, "look")
	own := decode[map[string]string](t, a, "look")
	end()
	for what, want := range notFound {
		if seen[what] != want {
			t.Errorf("the other tenant gets %q for %s, want %q", seen[what], what, want)
		}
		if what != "processes" && own[what] != "ok" {
			t.Errorf("the tenant itself gets %q for %s, so the test proves nothing", own[what], what)
		}
	}
	if !strings.Contains(own["processes"], "probe") {
		t.Errorf("the tenant itself sees the processes %q, without the canary", own["processes"])
	}
	if seen["uid_map"] == own["uid_map"] || len(strings.Fields(seen["uid_map"])) != 3 {
		t.Errorf("uid maps: %q and %q", seen["uid_map"], own["uid_map"])
	}
}

func TestNothingIsInheritedFromTheLast(t *testing.T) {
	first := newJail(t, "again")
	left, _ := leaveCanary(t, first, "feathers")
	if left != everything {
		t.Errorf("the canary left %q, want %q", left, everything)
	}
	if err := first.Destroy(t.Context(), "destroyed"); err != nil {
		t.Fatal(err)
	}
	seen := decode[map[string]string](t, newJail(t, "again"), "look")
	for what, want := range notFound {
		if seen[what] != want {
			t.Errorf("after the last one, the same tenant gets %q for %s, want %q", seen[what], what, want)
		}
	}
}
