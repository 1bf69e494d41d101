package templates

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// publishPackage makes a small package, with files of other owners and a script
// that makes a user, and an archive with it in the world.
func publishPackage(t *testing.T) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "greeting")
	for name, f := range map[string]struct {
		mode    os.FileMode
		content string
	}{
		"DEBIAN/control":          {0o644, "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@world.test>\nDescription: says hello\n"},
		"DEBIAN/postinst":         {0o755, "#!/bin/sh\nset -e\nuseradd --system greeter\nchown -R greeter /var/lib/greeting\ninstall -o greeter -m 0600 /dev/null /var/lib/greeting/state\n"},
		"usr/bin/greeting":        {0o755, "#!/bin/sh\necho greetings\n"},
		"var/lib/greeting/nobody": {0o640, "x\n"},
	} {
		to := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, []byte(f.content), f.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(to, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(root, "var/lib/greeting/nobody"), 65534, 13); err != nil {
		t.Fatal(err)
	}
	deb := root + ".deb"
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--build", root, deb).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v: %s", err, out)
	}
	b, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	control, err := os.ReadFile(filepath.Join(root, "DEBIAN/control"))
	if err != nil {
		t.Fatal(err)
	}
	packages := fmt.Appendf(control, "Filename: ./greeting.deb\nSize: %d\nSHA256: %x\n\n", len(b), sha256.Sum256(b))
	sys.World.Handle(harness.OtherHost, func(w http.ResponseWriter, r *http.Request) {
		switch path.Clean(r.URL.Path) {
		case "/debian/Packages":
			_, _ = w.Write(packages)
		case "/debian/greeting.deb":
			_, _ = w.Write(b)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
}

// What apt does as the root of a jail, through the proxy, without a capability.
func TestAptInstallsIntoTheTenantsOwnRoot(t *testing.T) {
	needDebian(t)
	publishPackage(t)
	tenant := rootPrefix + "apt"
	as := func(user, script string) api.Process {
		t.Helper()
		var out api.Process
		if e := call(t, http.MethodPost, jail(tenant)+"/exec", map[string]any{"argv": []string{"sh", "-c", script}, "user": user}, &out); e != nil {
			t.Fatal(e)
		}
		return out
	}
	p := as("root", "echo 'deb [trusted=yes allow-insecure=yes] https://"+harness.OtherHost+"/debian/ ./' >/etc/apt/sources.list && "+
		"apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install greeting && stat -c '%U %a' /var/lib/greeting/state")
	if p.ExitCode == nil || *p.ExitCode != 0 || !strings.HasSuffix(p.Stdout, "root 600\n") {
		t.Fatalf("apt: %s%s", p.Stdout, p.Stderr)
	}
	if p := as("", "greeting; dpkg -s greeting | grep Status; id -un; touch /usr/x 2>&1"); !strings.HasPrefix(p.Stdout, "greetings\nStatus: install ok installed\nuser\n") || *p.ExitCode == 0 {
		t.Errorf("the tenant's user: %s%s", p.Stdout, p.Stderr)
	}
	if p := as("root", "grep -E '^(Cap|NoNew)' /proc/self/status | tr -d '\\t' | sort -u | grep -v 0000000000000000"); p.Stdout != "NoNewPrivs:1\n" {
		t.Errorf("root's rights: %q", p.Stdout)
	}
	// It is the tenant's, and nobody else's.
	other := rootPrefix + "other"
	if out, err := sys.Ctl(t.Context(), "", "exec", other, "--", "greeting"); err != nil || out.Code == 0 {
		t.Errorf("another tenant has the package: %+v, %v", out, err)
	}
	var diff api.Diff
	if e := call(t, http.MethodGet, jail(tenant)+"/diff", nil, &diff); e != nil || len(diff.Changes) != 0 {
		t.Errorf("diff, which is of workspace and home: %+v, %+v", diff, e)
	}
}
