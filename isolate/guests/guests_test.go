package guests

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestManifest(t *testing.T) {
	all, err := All()
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	seen := map[string]bool{}
	for _, g := range all {
		if g.Name == "" || g.Package == "" || g.Version == "" || g.File == "" || g.License == "" || len(g.SHA256) != 64 || !strings.HasPrefix(g.Integrity, "sha512-") {
			t.Errorf("incomplete: %+v", g)
		}
		if g.Output != filepath.Base(g.Output) || seen[g.Output] {
			t.Errorf("output %q", g.Output)
		}
		seen[g.Output] = true
	}
	if _, err := Find("nobody"); !errors.Is(err, ErrUnknown) {
		t.Errorf("error %v", err)
	}
}

func TestLoad(t *testing.T) {
	const name = "quickjs"
	dir := t.TempDir()
	var bad *Error
	if _, err := Load(dir, name); !errors.As(err, &bad) || !errors.Is(err, fs.ErrNotExist) || bad.Guest != name {
		t.Errorf("error %v", err)
	}
	g, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, g.Output), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := Load(dir, name); !errors.As(err, &bad) || b != nil {
		t.Errorf("error %v", err)
	}
	if b, err := Load("../../build/guests", name); err != nil || len(b) == 0 {
		t.Errorf("error %v", err)
	}
	if _, err := Load(dir, "nobody"); !errors.Is(err, ErrUnknown) {
		t.Errorf("error %v", err)
	}
}

func TestChecks(t *testing.T) {
	g := Guest{
		SHA256:    "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
		Integrity: "sha512-m3HSJL1i83hdltRq0+o9czGb+8KJDKra4t/3JRlnPKcjI8PZm6XBHXx6zG4UuMXaDEZjR1wuXDre9G9zvN7AQw==",
	}
	if err := errors.Join(g.Check([]byte("hello")), g.CheckTarball([]byte("hello"))); err != nil {
		t.Error(err)
	}
	if g.Check([]byte("hallo")) == nil || g.CheckTarball([]byte("hallo")) == nil {
		t.Error("another content is taken")
	}
	g.Integrity = "sha1-qvTGHdzF6KLavt4PO0gs2a6pQ00="
	if g.CheckTarball([]byte("hello")) == nil {
		t.Error("a weak integrity is taken")
	}
}
