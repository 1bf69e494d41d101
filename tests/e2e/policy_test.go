package e2e

import (
	"bytes"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/tests/internal/harness"
)

// sandboxd is the daemon's program.
func sandboxd(t *testing.T) string {
	t.Helper()
	if harness.UnderSystemd() {
		return "/usr/sbin/sandboxd"
	}
	bin, err := harness.Bin()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, "sandboxd")
}

// TestWrongPolicyIsNamedByLine: the daemon does not start, and says where the
// file is wrong.
func TestWrongPolicyIsNamedByLine(t *testing.T) {
	const head = "version: 1\ncallers:\n  - user: root\n    tenants: [\"*\"]\n"
	tests := []struct {
		name, text string
		line       int
		says       string
	}{
		{"unknown key", head + "profles: {}\n", 5, "profles"},
		{"unknown key inside", head + "profiles:\n  p:\n    jail:\n      template: host\n      memroy: 1GiB\n", 9, "memroy"},
		{"wrong type", head + "profiles:\n  p:\n    isolate: yes\n", 7, "isolate"},
		{"wrong size", head + "profiles:\n  p:\n    isolate:\n      languages: [js]\n      limits: {memory: lots}\n", 9, "memory"},
		{"tenant of an unknown profile", head + "tenants:\n  a: {profile: nope}\n", 6, "nope"},
		{"tenant's name", head + "profiles:\n  p: {isolate: {languages: [js]}}\ntenants:\n  \"../x\": {profile: p}\n", 8, "../x"},
		{"not YAML", "version: 1\n  bad: [\n", 2, ""},
		{"another version", "version: 2\n", 1, "version"},
		{"credential in cleartext", head + "profiles:\n  p:\n    isolate: {languages: [js], fetch: true}\n    egress:\n      - host: a.test\n        scheme: http\n        credential: {name: t, as: bearer}\n", 0, "http"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "policy.yaml")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := osexec.CommandContext(deadline(t), sandboxd(t), "dev", "--state", filepath.Join(dir, "state"), "--preview", "127.0.0.1:0", "--policy", file)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() < 1 {
				t.Fatalf("it started: %v\n%s", err, out.String())
			}
			where := file + ":"
			if tt.line > 0 {
				where += fmt.Sprintf("%d", tt.line)
			}
			if !strings.Contains(out.String(), where) || !strings.Contains(out.String(), tt.says) {
				t.Errorf("it does not name %s and %q:\n%s", where, tt.says, out.String())
			}
		})
	}
}
