package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/policy"
)

// TestDevPolicyIsMinimal: without a policy file nobody but the user who started
// the daemon gets anything, and nothing reaches out.
func TestDevPolicyIsMinimal(t *testing.T) {
	p, err := policy.Parse("dev", []byte(devPolicy(1234)))
	if err != nil {
		t.Fatal(err)
	}
	me, other := policy.Caller{UID: 1234}, policy.Caller{UID: 0}
	for _, tt := range []struct {
		caller policy.Caller
		tenant string
		want   bool
	}{{me, "dev", true}, {me, "dev-1", true}, {me, "alice", false}, {other, "dev", false}} {
		if got := p.MayAct(tt.caller, tt.tenant); got != tt.want {
			t.Errorf("uid %d for %s: %v", tt.caller.UID, tt.tenant, got)
		}
	}
	profile, err := p.For("dev")
	if err != nil {
		t.Fatal(err)
	}
	if len(profile.Egress) != 0 || profile.Isolate.Fetch {
		t.Errorf("something reaches out: %+v", profile)
	}
	if _, err := p.For("alice"); !errors.Is(err, policy.ErrNoTenant) {
		t.Errorf("alice: %v", err)
	}
}

func TestCredentialsAreOpenedUnread(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("value"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".hidden"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := openCredentials(dir)
	if err != nil || len(files) != 1 || files["token"] == nil {
		t.Fatalf("got %v, %v", files, err)
	}
	if at, err := files["token"].Seek(0, 1); err != nil || at != 0 {
		t.Errorf("the file was read up to %d, %v", at, err)
	}
	files["token"].Close()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openCredentials(dir); err == nil || !strings.Contains(err.Error(), "pipe") {
		t.Errorf("a pipe was taken: %v", err)
	}
	if files, err := openCredentials(""); err != nil || files != nil {
		t.Errorf("no folder gives %v, %v", files, err)
	}
}

func TestOwnCgroupIsRemoved(t *testing.T) {
	dir, cleanup, err := ownCgroup()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "jails", "a"), 0o755); err != nil {
		t.Error(err)
	}
	if err := cleanup(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
	if err := cleanup(); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestOwnCgroupSparesTheLiving(t *testing.T) {
	root, err := cgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	living, cleanup, err := ownCgroup()
	if err != nil {
		t.Fatal(err)
	}
	defer cleanup()
	crashed, err := os.MkdirTemp(root, devCgroups)
	if err != nil {
		t.Fatal(err)
	}
	left := exec.Command("sleep", "600")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	defer left.Process.Kill()
	if err := os.WriteFile(filepath.Join(crashed, "cgroup.procs"), []byte(strconv.Itoa(left.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()

	_, another, err := ownCgroup()
	if err != nil {
		t.Fatal(err)
	}
	if err := another(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(living); err != nil {
		t.Errorf("the group of a daemon that lives: %v", err)
	}
	if _, err := os.Stat(crashed); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the group of a daemon that crashed: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("what a crashed daemon left was not ended")
	}
}

func TestDevStateIsRemovedOnlyWhenOurs(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir, remove, err := devState("")
	if err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder is left: %v", err)
	}
	given := filepath.Join(t.TempDir(), "state")
	dir, remove, err = devState(given)
	if err != nil || dir != given {
		t.Fatalf("%s, %v", dir, err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(given); err != nil {
		t.Errorf("the given folder is gone: %v", err)
	}
}

func TestHiddenRoles(t *testing.T) {
	for _, role := range []string{"isolate-worker", "netproxy", "kernel-probe"} {
		if roles[role] == nil {
			t.Errorf("there is no role %s", role)
		}
	}
	c := command()
	c.SetArgs([]string{"role", "nonsense"})
	if err := c.Execute(); err == nil {
		t.Error("an unknown role was accepted")
	}
}
