package e2e

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

func diff(t *testing.T, who, since string) string {
	t.Helper()
	var d api.Diff
	query := ""
	if since != "" {
		query = "?since=" + since
	}
	want(t, "GET", jailPath(who)+"/diff"+query, nil, &d)
	var out []string
	for _, c := range d.Changes {
		out = append(out, c.Kind+" "+c.Path)
	}
	return strings.Join(out, ", ")
}

// TestSnapshots: a snapshot is taken while a server runs, which goes on; what is
// restored is the files as they were, in a jail made anew.
func TestSnapshots(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	snapshots := jailPath(who) + "/snapshots"
	want(t, "PUT", jailPath(who), api.JailRequest{Env: map[string]string{"OWN": "kept"}, MaxLifetime: policy.Duration(50 * 60e9)}, nil)
	sh(t, who, "mkdir src; echo one > src/a; echo two > src/b; ln -s a src/link")
	exec(t, who, api.ExecRequest{Command: "exec sleep 1000", Background: true, ExecID: "server"})
	var s api.Snapshot
	if a := want(t, "POST", snapshots, api.SnapshotRequest{Label: "clean"}, &s); a.Status != 201 || s.State != "complete" || s.Entries == 0 {
		t.Errorf("%d %+v", a.Status, s)
	}
	var p api.Process
	if want(t, "GET", jailPath(who)+"/processes/server", nil, &p); p.State != "running" {
		t.Errorf("after the snapshot the server is %s", p.State)
	}
	if got := diff(t, who, s.ID); got != "" {
		t.Errorf("right after it: %s", got)
	}
	sh(t, who, "echo ONE > src/a; rm src/b; echo new > src/c")
	if got, want := diff(t, who, s.ID), "modified /workspace/src/a, deleted /workspace/src/b, added /workspace/src/c"; got != want {
		t.Errorf("since the snapshot: %s", got)
	}
	if got := diff(t, who, ""); !strings.Contains(got, "added /workspace/src/c") {
		t.Errorf("since the creation: %s", got)
	}
	want(t, "POST", snapshots+"/"+s.ID+"/restore", nil, nil)
	if got := sh(t, who, "cat src/a src/b src/link; ls src; echo $OWN"); got != "one\ntwo\none\na\nb\nlink\nkept\n" {
		t.Errorf("restored: %q", got)
	}
	if a := do(t, "GET", jailPath(who)+"/processes/server", nil); a.Status != 404 {
		t.Errorf("the server of before is still known: %d", a.Status)
	}
	var j api.Jail
	if want(t, "GET", jailPath(who), nil, &j); j.Deadline.Sub(j.Created).Minutes() > 50 {
		t.Errorf("made anew it lives from %v to %v", j.Created, j.Deadline)
	}
	// An export is a snapshot's, or the files as they are now.
	sh(t, who, "echo later > later")
	for query, later := range map[string]bool{"": true, "?snapshot=" + s.ID: false} {
		found := false
		for r := tar.NewReader(bytes.NewReader(want(t, "GET", jailPath(who)+"/export"+query, nil, nil).Body)); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			found = found || h.Name == "workspace/later"
		}
		if found != later {
			t.Errorf("export%s: later is there: %t", query, found)
		}
	}
	var list api.SnapshotList
	if want(t, "GET", snapshots, nil, &list); len(list.Snapshots) != 1 || list.Snapshots[0].Label != "clean" {
		t.Errorf("%+v", list)
	}
	// Another tenant's is none of this one's.
	other := tenant(t, harness.AgentPrefix+"other-")
	wantError(t, do(t, "POST", jailPath(other)+"/snapshots/"+s.ID+"/restore", nil), 404, api.CodeNotFound, "snapshot")
	wantError(t, do(t, "GET", jailPath(other)+"/export?snapshot="+s.ID, nil), 404, api.CodeNotFound, "snapshot")
	wantError(t, do(t, "GET", jailPath(other)+"/diff", nil), 404, api.CodeNotFound, "")
	for range 2 {
		want(t, "DELETE", snapshots+"/"+s.ID, nil, nil)
	}
	wantError(t, do(t, "GET", jailPath(who)+"/diff?since="+s.ID, nil), 404, api.CodeNotFound, "snapshot")
}

// TestSnapshotsOutliveTheDaemon: killed, it keeps what was complete; the jail's
// end by its tenant's wish takes them along.
func TestSnapshotsOutliveTheDaemon(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	sh(t, who, "echo kept > f")
	var s api.Snapshot
	want(t, "POST", jailPath(who)+"/snapshots", api.SnapshotRequest{}, &s)
	if err := sys.Kill(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, who, "cat f; rm f"); got != "kept\n" {
		t.Errorf("the workspace has %q", got)
	}
	want(t, "POST", jailPath(who)+"/snapshots/"+s.ID+"/restore", nil, nil)
	if got := sh(t, who, "cat f"); got != "kept\n" {
		t.Errorf("restored: %q", got)
	}
	want(t, "DELETE", jailPath(who), nil, nil)
	var list api.SnapshotList
	if want(t, "GET", jailPath(who)+"/snapshots", nil, &list); len(list.Snapshots) != 0 {
		t.Errorf("after the end: %+v", list)
	}
}

// TestDiskLimit: where the host can hold a tenant to it, what is over the limit
// is refused, inside and by the API, and put on record; elsewhere the jail does
// not say it were held.
func TestDiskLimit(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	var j api.Jail
	want(t, "PUT", jailPath(who), api.JailRequest{Limits: &policy.Limits{Disk: 40 << 20, Inodes: 1000}}, &j)
	if j.Limits.Disk != 40<<20 {
		t.Errorf("limits %+v", j.Limits)
	}
	if !slices.Contains(j.Enforced, "disk") {
		if j.Usage.Disk != nil || slices.Contains(j.Enforced, "inodes") || harness.UnderSystemd() {
			t.Errorf("not held, and yet: %+v", j)
		}
		return
	}
	p := exec(t, who, api.ExecRequest{Command: "head -c 60000000 /dev/zero > big"})
	if p.ExitCode == nil || *p.ExitCode == 0 || len(p.Denials) != 1 || p.Denials[0].What != "disk" {
		t.Errorf("%s, denials %+v", ended(p), p.Denials)
	}
	e := wantError(t, do(t, "PUT", jailPath(who)+"/files/workspace/more", bytes.Repeat([]byte("x"), 10<<20)), 422, api.CodeLimit, "")
	if e.Limit != "disk" {
		t.Errorf("%+v", e)
	}
	if want(t, "GET", jailPath(who), nil, &j); j.Usage.Disk == nil || *j.Usage.Disk < 35<<20 || *j.Usage.Disk > 41<<20 {
		t.Errorf("usage %+v", j.Usage)
	}
	sh(t, who, "rm big; echo fits > small")
}
