package jail

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// limitsSeen is what a command that starts now has.
func limitsSeen(t *testing.T, j *Jail) string {
	t.Helper()
	return strings.Join(strings.Fields(sh(t, j, "awk '/Max open files/ {n = $4} /Max processes/ {u = $3} END {print n, u}' /proc/self/limits").stdout), " ")
}

func TestUpdateOfLimits(t *testing.T) {
	m := testManager(t)
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{OpenFiles: 200, Pids: 100}})
	if err != nil {
		t.Fatal(err)
	}
	if got := limitsSeen(t, j); got != "200 100" {
		t.Fatal(got)
	}
	// Up and down, frozen or not, and what is not named stays.
	if err := j.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.Update(t.Context(), Limits{OpenFiles: 300, Memory: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	if got := limitsSeen(t, j); got != "300 100" {
		t.Errorf("after the first change: %s", got)
	}
	if err := j.Update(t.Context(), Limits{OpenFiles: 150, Pids: 120}); err != nil {
		t.Fatal(err)
	}
	if got, l := limitsSeen(t, j), j.Info().Limits; got != "150 120" || l.Memory != 64<<20 || l.Pids != 120 {
		t.Errorf("after the second change: %s, %+v", got, l)
	}
	// What is out of range changes nothing.
	for _, bad := range []Limits{{OpenFiles: 170, Memory: 1}, {OpenFiles: 1 << 30}, {Pids: 1}, {IOBytes: 1}} {
		var field *SpecError
		if err := j.Update(t.Context(), bad); !errors.As(err, &field) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if got := limitsSeen(t, j); got != "150 120" {
		t.Errorf("after what was refused: %s", got)
	}
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if err := j.Update(t.Context(), Limits{Pids: 200}); !errors.Is(err, ErrGone) {
		t.Errorf("after its end: %v", err)
	}
}

// TestUpdateIsAllOrNothing: a limit that cannot be held takes those before it
// back.
func TestUpdateIsAllOrNothing(t *testing.T) {
	m, _ := imageManager(t)
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{OpenFiles: 200, Pids: 100, Disk: 40 << 20, Inodes: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	before := j.Info().Limits
	for _, bad := range []Limits{
		{OpenFiles: 300, Pids: 200, Disk: 30 << 20}, {OpenFiles: 300, Inodes: 2000}, {OpenFiles: 300, Disk: 1 << 20},
	} {
		var field *SpecError
		if err := j.Update(t.Context(), bad); !errors.As(err, &field) || !strings.HasPrefix(field.Field, "limits.") {
			t.Errorf("%+v: %v", bad, err)
		}
		if got := limitsSeen(t, j); got != "200 100" || j.Info().Limits != before {
			t.Errorf("%+v: afterwards %s, %+v", bad, got, j.Info().Limits)
		}
	}
}

// TestUpdateOfTheDisk of an ephemeral workspace, in memory; of images and
// projects in tests/vm, where the kernel lets the daemon.
func TestUpdateOfTheDisk(t *testing.T) {
	m, _ := imageManager(t)
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Ephemeral: true, Limits: Limits{Disk: 4 << 20, Inodes: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	fill := func() string { return sh(t, j, "head -c 6000000 /dev/zero > f && echo fits || echo full").stdout }
	if got := fill(); got != "full\n" {
		t.Fatal(got)
	}
	if err := j.Update(t.Context(), Limits{Disk: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	if got := fill(); got != "fits\n" {
		t.Error(got)
	}
	var field *SpecError
	if err := j.Update(t.Context(), Limits{Disk: 4 << 20}); !errors.As(err, &field) || field.Field != "limits.disk" {
		t.Errorf("less than there is: %v", err)
	}
	sh(t, j, "rm f")
	if err := j.Update(t.Context(), Limits{Disk: 4 << 20}); err != nil {
		t.Error(err)
	}
	if got := fill(); got != "full\n" {
		t.Errorf("after it was lowered again: %s", got)
	}
}

// TestIOLimit: where the host cannot hold it, it is refused, unless the operator
// has said best-effort; what it writes is in tests/vm.
func TestIOLimit(t *testing.T) {
	cfg := testConfig(t)
	m, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	if _, err := os.Stat(filepath.Join(string(m.jails), "io.max")); err == nil {
		t.Fatal("this host has the io controller: look at tests/vm")
	}
	if _, err := m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{IOBytes: 1 << 20}}); err != nil {
		t.Errorf("best-effort: %v", err)
	}
	m.cfg.BestEffort = false
	var lacks *UnsupportedError
	if _, err := m.Create(t.Context(), Spec{Tenant: "bob", Limits: Limits{IOOps: 100}}); !errors.As(err, &lacks) {
		t.Errorf("limits are to be held: %v", err)
	}
	j := testJail(t, m, "carol")
	if err := j.Update(t.Context(), Limits{IOOps: 100}); !errors.As(err, &lacks) || j.Info().Limits.IOOps != 0 {
		t.Errorf("a change of limits that are to be held: %v", err)
	}
}
