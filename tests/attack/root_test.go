package attack

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"testing"

	"sandboxd/jail"
)

// newRoot makes a jail of a template whose root is writable; the template has
// nothing but links to try.
func newRoot(t *testing.T, tenant string) *jail.Jail {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "root", Mode: 0o700}, {Typeflag: tar.TypeDir, Name: "usr/bin", Mode: 0o755},
		{Typeflag: tar.TypeSymlink, Name: "proc", Linkname: "/etc"}, {Typeflag: tar.TypeSymlink, Name: "workspace", Linkname: "../.."},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := manager.Templates().Import(t.Context(), "attacked", &b, nil); err != nil {
		t.Fatal(err)
	}
	j, err := manager.Create(t.Context(), jail.Spec{
		Tenant: tenant, Template: "attacked", WritableRoot: true, Ephemeral: true, CABundle: []byte("# no certificate\n"), Resolvers: []string{"192.0.2.53"},
		Limits: jail.Limits{OpenFiles: openFiles, Pids: pids, Disk: disk},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Destroy(context.WithoutCancel(t.Context()), "destroyed"); err != nil {
			t.Errorf("destroy %s: %v", tenant, err)
		}
		if err := manager.Templates().Remove("attacked"); err != nil {
			t.Error(err)
		}
	})
	file, err := os.Open(probe)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := j.WriteFile(t.Context(), "/workspace/probe", file, 0o755, 64<<20); err != nil {
		t.Fatal(err)
	}
	return j
}

// TestAttemptsAsRoot runs every attempt as the root of a jail whose root is
// writable: it may do no more, but to what is its own.
func TestAttemptsAsRoot(t *testing.T) {
	j := newRoot(t, "attacked-root")
	p, err := j.Exec(t.Context(), jail.ExecSpec{Argv: []string{"/workspace/probe"}, User: "0", Cwd: "/", Output: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for e, err := range p.Events(t.Context(), 0, true) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Kind {
		case jail.EventStdout:
			out = append(out, e.Data...)
		case jail.EventStderr:
			t.Logf("the probe says: %s", e.Data)
		}
	}
	got := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l struct{ ID, Got string }
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got[l.ID] = l.Got
	}
	want := expected()
	maps.Copy(want, expectedOfRoot)
	// Of the host's system only.
	for _, id := range []string{"A09 mount /usr", "A09 mount /opt"} {
		delete(want, id)
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if g, tried := got[id]; !tried {
			t.Errorf("%s: not tried", id)
		} else if !matches(g, want[id]) {
			t.Errorf("%s:\n got %q\nwant %q", id, g, want[id])
		}
	}
	if info := j.Info(); info.State != jail.StateRunning {
		t.Errorf("after the attacks the jail is %s (%s)", info.State, info.Cause)
	}
}

// expectedOfRoot is where root's outcomes differ from the tenant's ordinary
// user's: what the template has is its own, what that user owns is not, and what
// it says to PID 1, whose user id it has, is not heard.
var expectedOfRoot = map[string]string{
	"A02 working directory":         "/",
	"A03 write /proc/self/exe":      "EACCES",
	"A09 /":                         "dev etc home proc root run tmp usr var workspace",
	"A13 setuid 0":                  "ok",
	"A13 setuid bit in workspace":   "EACCES",
	"A13 status Gid":                "0 0 0 0",
	"A13 status Uid":                "0 0 0 0",
	"A15 own uid_map":               "EPERM",
	"A22 kill init":                 "ok",
	"A22 signal init by descriptor": "ok",
	"A22 signal init by thread":     "ok",
	"A22 stop init":                 "ok",
	"C01 append /etc/hosts":         "ok",
	"C01 create in /":               "ok",
	"C01 create in /bin":            "ENOENT",
	"C01 create in /etc":            "ok",
	"C01 create in /home":           "ok",
	"C01 create in /root":           "ok",
	"C01 create in /run":            "ok",
	"C01 create in /usr":            "ok",
	"C01 create in /usr/local":      "ok",
	"C01 create in /var":            "ok",
	"C01 create in workspace":       "EACCES",
	"C01 execute in /tmp":           "ENOENT", // the template has no program
	"C01 execute in workspace":      "write: EACCES",
	"C01 link a host's program":     "ENOENT",
	"C01 rename in workspace":       "write: EACCES",
	"C01 rename to /tmp":            "write: EACCES",
	"C01 replace resolv.conf":       "ok",
	"C01 truncate /etc/passwd":      "ok",
	"C01 unlink a program":          "ENOENT",
	"C01 write /usr/bin/env":        "ENOENT",
	"C02 chmod /etc/passwd":         "ok",
	"C02 chmod a program":           "ENOENT",
	"C02 chown a program":           "ok", // answered, not done
	"C02 chown to root":             "EACCES",
	"C02 file capabilities":         "EACCES",
	"C02 setxattr on a program":     "ENOENT",
	"C02 utimes of a program":       "ENOENT",
	"C04 FIFOs in the tree":         "only 25 files seen, <nil>",
	"C04 devices outside /dev":      "only 25 files seen, <nil>",
	"C04 sockets in the tree":       "only 25 files seen, <nil>",
	"C06 mkfifo in workspace":       "EACCES",
	"C09 folders to write in":       "/",
	"C10 symlink to init's root":    "link: EACCES",
	"D08 zombies":                   "ENOENT",
}
