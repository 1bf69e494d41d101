package jail

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// smallSystem packs a few of the host's programs with their libraries, and the
// entries, as a template's tar.
func smallSystem(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]bool{}
	for _, program := range []string{"sh", "cat", "chmod", "chown", "id", "ls", "mkdir", "mv", "readlink", "rm", "stat", "touch", "true", "env", "mknod", "mkfifo", "ln"} {
		program = "/usr/bin/" + program
		files[program] = true
		out, err := exec.Command("ldd", program).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", program, err)
		}
		for _, lib := range regexp.MustCompile(`/[^ ]+\.so[^ ]*`).FindAllString(string(out), -1) {
			files[lib] = true
		}
	}
	for name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(name, "/usr/") {
			name = "/usr" + name
		}
		add(tar.Header{Typeflag: tar.TypeReg, Name: name[1:], Mode: 0o755}, content)
	}
	for _, dir := range []string{"bin", "lib", "lib64"} {
		if _, err := os.Readlink("/" + dir); err == nil {
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: dir, Linkname: "usr/" + dir}, nil)
		}
	}
	for _, h := range entries {
		add(h, nil)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func importSmall(t testing.TB, m *Manager, name string, entries ...tar.Header) {
	t.Helper()
	if _, err := m.Templates().Import(t.Context(), name, bytes.NewReader(smallSystem(t, entries...)), nil); err != nil {
		t.Fatal(err)
	}
}

// sh runs a script as the jail's user and returns its output and exit code.
func shIn(t testing.TB, j *Jail, script string) (string, int) {
	t.Helper()
	out := sh(t, j, script)
	return strings.TrimSpace(out.stdout), out.exit.Code
}

func TestTemplateIsReadOnly(t *testing.T) {
	m := testManager(t)
	importSmall(t, m, "small",
		tar.Header{Typeflag: tar.TypeDir, Name: "mine", Mode: 0o755, Uid: 1000, Gid: 1000},
		tar.Header{Typeflag: tar.TypeDir, Name: "all", Mode: 0o1777},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "workspace", Linkname: "/etc"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "proc", Linkname: "/mine"},
		tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/su", Mode: 0o6755})
	j, err := m.Create(t.Context(), Spec{Tenant: "a", Template: "small"})
	if err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{
		"id -u": "1000",
		"stat -c %u:%g /usr/bin/cat /mine /mine/. /etc/passwd /usr/bin/su": "0:0\n1000:1000\n1000:1000\n0:0\n0:0",
		"stat -c %a /usr/bin/su":                          "755",
		"ls /usr/bin/node /base /layer 2>/dev/null":       "",
		"cat /etc/hosts":                                  "127.0.0.1 localhost\n127.0.0.1 a",
		"readlink /workspace /proc":                       "",
		"echo $HOME; echo x >f && cat f; pwd":             "/home/user\nx\n/workspace",
		"cat /proc/self/comm":                             "cat",
		"ls -d /dev/sd* /sys 2>/dev/null":                 "",
		"cat /etc/passwd":                                 "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/sh",
		"grep -c . /proc/self/mountinfo >/dev/null; true": "",
	} {
		if out, _ := shIn(t, j, script); out != want {
			t.Errorf("%s: %q, want %q", script, out, want)
		}
	}
	for _, script := range []string{
		"echo x >/mine/f", "echo x >/all/f", "chmod 700 /mine", "touch /mine", "mkdir /mine/d", "chown 1000 /all",
		"rm -rf /mine", "mv /mine /all/x", "echo x >/etc/hosts", "touch /x", "echo x >/usr/bin/cat",
	} {
		if out, code := shIn(t, j, script); code == 0 {
			t.Errorf("%s: worked: %q", script, out)
		}
	}
	if _, err := j.WriteFile(t.Context(), "/mine/f", strings.NewReader("x"), 0o644, 10); err == nil {
		t.Error("the file interface wrote into a read-only root")
	}
}

// Two tenants have the same files, each as its own root's; what one may do
// changes nothing for the other.
func TestTenantsShareLayersAndNothingElse(t *testing.T) {
	m := testManager(t)
	importSmall(t, m, "small", tar.Header{Typeflag: tar.TypeDir, Name: "mine", Mode: 0o755, Uid: 1000, Gid: 1000})
	tm, err := m.Templates().Get("small")
	if err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(m.cfg.StateDir, "templates/layers", tm.Layers[0], "tree")
	var before, after unix.Stat_t
	if err := unix.Stat(filepath.Join(layer, "usr/bin/cat"), &before); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"a", "b"} {
		j, err := m.Create(t.Context(), Spec{Tenant: tenant, Template: "small", WritableRoot: true})
		if err != nil {
			t.Fatal(err)
		}
		if out, code := shIn(t, j, "echo "+tenant+" >/mine/f && stat -c %u /usr/bin/cat /mine/f && cat /mine/*"); code != 0 || out != "0\n1000\n"+tenant {
			t.Errorf("%s: %q, %d", tenant, out, code)
		}
	}
	if err := unix.Stat(filepath.Join(layer, "usr/bin/cat"), &after); err != nil || after != before {
		// The time of access may differ.
		after.Atim = before.Atim
		if after != before {
			t.Errorf("the shared file was %+v, is %+v, %v", before, after, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(layer, "mine")); err != nil || len(entries) > 0 {
		t.Errorf("the layer has %v, %v", entries, err)
	}
}

func TestWritableRootStaysWithTheWorkspace(t *testing.T) {
	m := testManager(t)
	importSmall(t, m, "small", tar.Header{Typeflag: tar.TypeDir, Name: "mine", Mode: 0o755, Uid: 1000, Gid: 1000})
	spec := Spec{Tenant: "a", Template: "small", WritableRoot: true}
	again := func(spec Spec) *Jail {
		t.Helper()
		if old, ok := m.Get(spec.Tenant); ok {
			if err := old.Destroy(t.Context(), CauseDestroyed); err != nil {
				t.Fatal(err)
			}
		}
		j, err := m.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	shIn(t, again(spec), "echo kept >/mine/f")
	if out, _ := shIn(t, again(spec), "cat /mine/f"); out != "kept" {
		t.Errorf("after a new jail: %q", out)
	}
	// Other layers under the same name: the old changes are not for them.
	importSmall(t, m, "small", tar.Header{Typeflag: tar.TypeDir, Name: "mine", Mode: 0o700, Uid: 1000, Gid: 1000})
	old, _ := m.Get("a")
	if out, code := shIn(t, old, "cat /mine/f && /usr/bin/true"); code != 0 {
		t.Errorf("the jail that has the old layers: %q, %d", out, code)
	}
	if err := old.Destroy(t.Context(), CauseDestroyed); err != nil {
		t.Fatal(err)
	}
	var other *RootError
	if _, err := m.Create(t.Context(), spec); !errors.As(err, &other) || other.Has != "an earlier small" {
		t.Fatalf("%v, want a RootError", err)
	}
	spec.ResetRoot = true
	if out, _ := shIn(t, again(spec), "ls /mine; stat -c %a /mine"); out != "700" {
		t.Errorf("after a reset: %q", out)
	}
	if layers, err := os.ReadDir(filepath.Join(m.cfg.StateDir, "templates/layers")); err != nil || len(layers) != 2 {
		t.Errorf("layers: %v, %v", layers, err)
	}
	spec = Spec{Tenant: "e", Template: "small", WritableRoot: true, Ephemeral: true}
	shIn(t, again(spec), "echo gone >/mine/f")
	if out, _ := shIn(t, again(spec), "ls /mine"); out != "" {
		t.Errorf("after an ephemeral jail: %q", out)
	}
}

// What a tenant leaves in its root in place of the jail's own files is neither
// followed nor kept.
func TestHostileWritableRoot(t *testing.T) {
	m := testManager(t)
	importSmall(t, m, "small")
	spec := Spec{Tenant: "a", Template: "small", WritableRoot: true}
	j, err := m.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	upper := filepath.Join(m.cfg.StateDir, "tenants/a/files/root/upper")
	if err := j.Destroy(t.Context(), CauseDestroyed); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(t.TempDir(), "hosts")
	for _, make := range []func() error{
		func() error { return os.Mkdir(filepath.Join(upper, "etc"), 0o755) },
		func() error { return os.Chown(filepath.Join(upper, "etc"), int(j.uid), int(j.uid)) },
		func() error {
			return os.WriteFile(filepath.Join(upper, "etc/hosts"), []byte("6.6.6.6 localhost"), 0o644)
		},
		func() error { return os.Symlink(victim, filepath.Join(upper, "etc/resolv.conf")) },
		func() error { return os.WriteFile(victim, []byte("as it was"), 0o644) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
	}
	spec.Resolvers = []string{"192.0.2.1"}
	if j, err = m.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if out, _ := shIn(t, j, "cat /etc/hosts /etc/resolv.conf"); out != "127.0.0.1 localhost\n127.0.0.1 a\nnameserver 192.0.2.1" {
		t.Errorf("own files: %q", out)
	}
	if err := j.Destroy(t.Context(), CauseDestroyed); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(upper, "etc")), os.Symlink(filepath.Dir(victim), filepath.Join(upper, "etc"))); err != nil {
		t.Fatal(err)
	}
	if j, err = m.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "as it was" {
		t.Errorf("the host's file: %q, %v", b, err)
	}
}

func TestProbeTemplates(t *testing.T) {
	if err := testManager(t).ProbeTemplates(); err != nil {
		t.Error(err)
	}
}

func TestTemplateMustBeThere(t *testing.T) {
	m := testManager(t)
	for _, spec := range []Spec{{Template: "missing"}, {Template: "../x"}, {Template: "host", WritableRoot: true}, {WritableRoot: true}} {
		spec.Tenant = "a"
		var bad *SpecError
		if _, err := m.Create(t.Context(), spec); !errors.As(err, &bad) || bad.Field != "template" {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	if entries, err := os.ReadDir(m.tenantsDir()); err != nil || len(entries) > 0 {
		t.Errorf("%v is left, %v", entries, err)
	}
}

// The tenant's disk limit holds its root too.
func TestWritableRootIsWithinTheLimit(t *testing.T) {
	m, _ := imageManager(t)
	importSmall(t, m, "small", tar.Header{Typeflag: tar.TypeDir, Name: "mine", Mode: 0o755, Uid: 1000, Gid: 1000})
	for _, ephemeral := range []bool{false, true} {
		j, err := m.Create(t.Context(), Spec{Tenant: "a", Template: "small", WritableRoot: true, Ephemeral: ephemeral, Limits: Limits{Disk: 32 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = j.WriteFile(t.Context(), "/mine/f", io.LimitReader(zeroReader{}, 64<<20), 0o644, 1<<30)
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			t.Errorf("64 MiB in 32: %v", err)
		}
		if err := j.Destroy(t.Context(), CauseDestroyed); err != nil {
			t.Fatal(err)
		}
	}
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'z'
	}
	return len(b), nil
}
