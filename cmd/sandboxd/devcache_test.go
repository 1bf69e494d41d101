package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDevCache(t *testing.T) {
	home, err := os.MkdirTemp("/var/lib", "sandboxd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	want := filepath.Join(home, "cache", "sandboxd")
	if got := devCache(); got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
	if err := os.Chmod(filepath.Join(home, "cache"), 0o777); err != nil {
		t.Fatal(err)
	}
	if got := devCache(); got != "" {
		t.Errorf("a folder that others can change is taken: %q", got)
	}
	if err := os.Chmod(filepath.Join(home, "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(want, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if got := devCache(); got != "" {
		t.Errorf("another user's folder is taken: %q", got)
	}
	t.Setenv("XDG_CACHE_HOME", "relative")
	if got := devCache(); got != "" {
		t.Errorf("a relative path is taken: %q", got)
	}
}
