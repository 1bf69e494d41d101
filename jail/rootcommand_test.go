package jail

import (
	"archive/tar"
	"strings"
	"testing"
)

// The root of a jail whose root is writable changes it, and has no other right
// that the tenant's ordinary user has not.
func TestRootWithoutCapabilities(t *testing.T) {
	m := testManager(t)
	importSmall(t, m, "small", tar.Header{Typeflag: tar.TypeDir, Name: "root", Mode: 0o700})
	j, err := m.Create(t.Context(), Spec{Tenant: "a", Template: "small", WritableRoot: true})
	if err != nil {
		t.Fatal(err)
	}
	asRoot := func(script string) output {
		t.Helper()
		return run(t, j, ExecSpec{Argv: []string{"/bin/sh", "-c", script}, User: "root"})
	}
	sh(t, j, "echo mine >/workspace/f; chmod 600 /workspace/f")
	for script, want := range map[string]string{
		"id -u; id -g; echo $HOME $USER": "0\n0\n/root root",
		"while read l; do case $l in Cap*|NoNew*|Seccomp:*) echo $l;; esac; done </proc/self/status": strings.Join([]string{
			"CapInh: 0000000000000000", "CapPrm: 0000000000000000", "CapEff: 0000000000000000", "CapBnd: 0000000000000000", "CapAmb: 0000000000000000",
			"NoNewPrivs: 1", "Seccomp: 2"}, "\n"),
		"mkdir /opt && echo x >/opt/f && chown 7:8 /opt/f && chmod 4755 /opt/f && stat -c '%u %a' /opt/f": "0 4755",
		"echo '127.0.0.1 x' >>/etc/hosts && cat /etc/hosts":                                               "127.0.0.1 localhost\n127.0.0.1 a\n127.0.0.1 x",
		"rm /usr/bin/touch && ls /usr/bin/touch 2>/dev/null":                                              "",
		"cat /proc/1/comm 2>/dev/null; ls /proc/1 2>/dev/null":                                            "",
	} {
		if out := asRoot(script); strings.TrimSpace(out.stdout) != want {
			t.Errorf("%s: %q %q, want %q", script, out.stdout, out.stderr, want)
		}
	}
	for _, script := range []string{
		"cat /workspace/f", "echo x >/workspace/g", "mknod /opt/d c 1 3", "mknod /opt/d b 8 0", "echo 1 >/proc/sys/kernel/core_pattern",
		"echo x >/proc/sysrq-trigger", "echo x >/dev/newdevice", "kill -9 1 && false", "ls /proc/1/fd",
	} {
		if out := asRoot(script); out.exit.Code == 0 {
			t.Errorf("%s: worked: %q", script, out.stdout)
		}
	}
	// Whatever it says to PID 1, which has its user id, is not heard.
	asRoot("s=1; while [ $s -lt 32 ]; do kill -$s 1; s=$((s+1)); done")
	if out := asRoot("echo $PPID; trap 'echo heard' TERM; kill -TERM $$"); out.exit.Code != 0 || !strings.Contains(out.stdout, "heard") {
		t.Errorf("after signals: %+v", out)
	}
	if out := sh(t, j, "trap 'echo heard' HUP; kill -HUP $$"); strings.TrimSpace(out.stdout) != "heard" {
		t.Errorf("the tenant's user after that: %+v", out)
	}
}
