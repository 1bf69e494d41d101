package wasm

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wazeroDir is where wazero's own tests lie: they bring guests that four other
// compilers made, with the libraries of their languages.
func wazeroDir(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/tetratelabs/wazero").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "imports", "wasi_snapshot_preview1")
}

// TestOtherCompilers runs what wazero's own suite runs of these guests, here
// without a host's directory.
func TestOtherCompilers(t *testing.T) {
	dir := wazeroDir(t)
	for _, name := range []string{"cargo-wasi", "tinygo", "zig", "zig-cc"} {
		t.Run(name, func(t *testing.T) {
			cat, err := os.ReadFile(filepath.Join(dir, "example", "testdata", name, "cat.wasm"))
			if err != nil {
				t.Fatal(err)
			}
			m := compile(t, cat)
			w := &testWorld{}
			if status, err := do(t, m, w, Job{Args: []string{"cat", "test.txt"}, Files: map[string]string{"test.txt": "greet filesystem\n"}}); err != nil || status != 0 || w.out[1].String() != "greet filesystem\n" {
				t.Errorf("cat: status %d, %v, %q %q", status, err, w.out[1].String(), w.out[2].String())
			}
			suite, err := os.ReadFile(filepath.Join(dir, "testdata", name, "wasi.wasm"))
			if err != nil {
				t.Fatal(err)
			}
			testSuite(t, compile(t, suite), name)
		})
	}
}

func testSuite(t *testing.T, m *Module, name string) {
	files := map[string]string{"dir/-": "", "dir/a-": "", "dir/ab-": "text"}
	// Most print the names after "./", whatever the folder's is.
	ls := "./-\n./a-\n./ab-"
	switch name {
	case "cargo-wasi":
		ls = "./dir/-\n./dir/a-\n./dir/ab-"
	case "zig-cc":
		ls = "./-\n./.\n./..\n./a-\n./ab-"
	}
	for _, x := range []struct {
		args, want string
		only       string // compilers whose guest knows it
		sorted     bool
	}{
		{"ls ./dir", ls, "cargo-wasi tinygo zig zig-cc", true},
		{"ls ./dir/ab-", "ENOTDIR", "cargo-wasi zig zig-cc", false},
		{"stat", "stdin isatty: false\nstdout isatty: false\nstderr isatty: false\n/ isatty: false", "cargo-wasi tinygo zig zig-cc", false},
		{"preopen", "0: stdin\n1: stdout\n2: stderr\n3: /", "zig", false},
		{"poll 0 500", "STDIN", "zig-cc", false},
		{"sleepmillis 100", "OK", "zig-cc", false},
		{"open-rdonly", "OK", "zig-cc", false},
		{"open-wronly", "OK", "zig-cc", false},
	} {
		if !slices.Contains(strings.Fields(x.only), name) {
			continue
		}
		w := &testWorld{}
		status, err := do(t, m, w, Job{Args: append([]string{"wasi"}, strings.Fields(x.args)...), Files: files, Input: []byte("x")})
		got := strings.Split(strings.TrimSpace(w.out[1].String()), "\n")
		if x.sorted {
			slices.Sort(got)
		}
		if err != nil || status != 0 || strings.Join(got, "\n") != x.want {
			t.Errorf("%s: status %d, %v\n%q, want %q\n%s", x.args, status, err, got, x.want, w.out[2].String())
		}
	}
}
