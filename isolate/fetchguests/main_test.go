package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"path/filepath"
	"testing"

	"sandboxd/isolate/guests"
)

func tarball(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, h := range headers {
		content := []byte("content of " + h.Name)
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := tw.Write(content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestExtract(t *testing.T) {
	b := tarball(t,
		tar.Header{Name: "package/x", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		tar.Header{Name: "package/y", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "package/x", Typeflag: tar.TypeReg, Mode: 0o644},
	)
	if got, err := extract(b, "package/x"); err != nil || string(got) != "content of package/x" {
		t.Errorf("%q, %v", got, err)
	}
	for name, b := range map[string][]byte{"no such file": b, "cut": b[:len(b)/2], "no gzip": []byte("hello")} {
		if got, err := extract(b, "package/z"); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestNothingToFetch: with the right files in place no client is called.
func TestNothingToFetch(t *testing.T) {
	dir := t.TempDir()
	all, err := guests.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all {
		b, err := guests.Load("../../build/guests", g.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := install(filepath.Join(dir, g.Output), b); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(context.Background(), dir, "/nonexistent/npm"); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, all[0].Output), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(context.Background(), dir, "/nonexistent/npm"); err == nil {
		t.Error("a changed file is left as it is")
	}
}

// TestWrongTarball: what the client brings is checked before it is used.
func TestWrongTarball(t *testing.T) {
	bin := t.TempDir()
	npm := filepath.Join(bin, "npm")
	script := "#!/bin/sh\nprintf hello > \"$4/x.tgz\"\n"
	if err := os.WriteFile(npm, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := run(context.Background(), dir, npm); err == nil {
		t.Error("another tarball is taken")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
