package vm

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// TestDiskLimitOfTheService: the machine's root file system has no project
// quotas, so tenants are held by images; doctor says so.
func TestDiskLimitOfTheService(t *testing.T) {
	const who = harness.AgentPrefix + "disk"
	var j api.Jail
	want(t, "PUT", jailPath(who), api.JailRequest{Limits: &policy.Limits{Disk: 40 << 20}}, &j)
	defer want(t, "DELETE", jailPath(who), nil, nil)
	if !slices.Contains(j.Enforced, "disk") || j.Usage.Disk == nil {
		t.Errorf("enforced are %q, usage %+v", j.Enforced, j.Usage)
	}
	if found := diskCheck(t); !strings.Contains(found, "image") {
		t.Errorf("doctor says %q", found)
	}
}

// TestProjectQuotas holds a tenant on ext4 and on xfs to its bytes and inodes,
// also after a restore, whose copy is in the tenant's other project.
func TestProjectQuotas(t *testing.T) {
	const state = "/var/lib/sandboxd/jails"
	for fs, mkfs := range map[string][]string{
		"ext4": {"mkfs.ext4", "-q", "-F", "-O", "project,quota", "-E", "quotatype=prjquota"},
		"xfs":  {"mkfs.xfs", "-q"},
	} {
		t.Run(fs, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 400<<20)); err != nil {
				t.Fatal(err)
			}
			command(t, mkfs[0], append(mkfs[1:], image)...)
			if err := sys.Stop(deadline(t)); err != nil {
				t.Fatal(err)
			}
			// In this order at the end, whatever fails: stop, unmount, start.
			defer func() {
				if err := sys.Restart(deadline(t)); err != nil {
					t.Error(err)
				}
			}()
			command(t, "mount", "-o", "loop,prjquota", image, state)
			defer command(t, "umount", state)
			defer func() {
				if err := sys.Stop(deadline(t)); err != nil {
					t.Error(err)
				}
			}()
			if err := sys.Restart(deadline(t)); err != nil {
				t.Fatal(err)
			}
			heldByProject(t)
		})
	}
}

func heldByProject(t *testing.T) {
	t.Helper()
	const who = harness.AgentPrefix + "held"
	limits := &policy.Limits{Disk: 20 << 20, Inodes: 500}
	var j api.Jail
	want(t, "PUT", jailPath(who), api.JailRequest{Limits: limits}, &j)
	defer want(t, "DELETE", jailPath(who), nil, nil)
	if found := diskCheck(t); !strings.Contains(found, "project") || !slices.Contains(j.Enforced, "inodes") {
		t.Errorf("doctor says %q, enforced are %q", found, j.Enforced)
	}
	wantOutput(t, who, "head -c 60000000 /dev/zero > big || echo full; [ $(stat -c %s big) -lt 21000000 ] && echo held", "full\nheld\n")
	a, err := sys.API.Do(deadline(t), "PUT", jailPath(who)+"/files/workspace/more", []byte(strings.Repeat("x", 5<<20)))
	if e := a.Error(); err != nil || e == nil || e.Limit != "disk" {
		t.Errorf("written by the API: %v %d %s", err, a.Status, a.Body)
	}
	if want(t, "GET", jailPath(who), nil, &j); j.Usage.Disk == nil || *j.Usage.Disk < 15<<20 || *j.Usage.Disk > 21<<20 {
		t.Errorf("usage %+v", j.Usage)
	}
	wantOutput(t, who, "rm big; i=0; while [ $i -lt 1000 ] && true > f$i; do i=$((i+1)); done 2>/dev/null; [ $i -lt 500 ] && echo inodes; rm f*; echo one > one && echo again", "inodes\nagain\n")
	var s api.Snapshot
	want(t, "POST", jailPath(who)+"/snapshots", api.SnapshotRequest{}, &s)
	wantOutput(t, who, "rm one; head -c 15000000 /dev/zero > fat && echo fits", "fits\n")
	// A full disk keeps no jail from coming back.
	wantOutput(t, who, "head -c 60000000 /dev/zero > fill; i=0; while [ $i -lt 1000 ] && true > f$i; do i=$((i+1)); done 2>/dev/null; echo full", "full\n")
	for range 2 {
		want(t, "POST", jailPath(who)+"/snapshots/"+s.ID+"/restore", nil, nil)
		wantOutput(t, who, "cat one; head -c 15000000 /dev/zero > fat && echo fits; head -c 15000000 /dev/zero > fatter || echo full; rm fat*", "one\nfits\nfull\n")
	}
}

// diskCheck is what doctor finds of disk quotas.
func diskCheck(t *testing.T) string {
	t.Helper()
	var doc api.Doctor
	want(t, "GET", "/v1/doctor", nil, &doc)
	for _, c := range doc.Checks {
		if c.Name == "disk quota" {
			return c.Found
		}
	}
	t.Fatalf("doctor says nothing of disk quotas: %+v", doc.Checks)
	return ""
}

func wantOutput(t *testing.T, who, script, want string) {
	t.Helper()
	if p := exec(t, who, api.ExecRequest{Command: script}); p.Stdout != want {
		t.Errorf("%s: got %q, want %q; %s", script, p.Stdout, want, p.Stderr)
	}
}
