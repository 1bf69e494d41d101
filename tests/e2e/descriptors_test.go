package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/tests/internal/harness"
)

// TestCtlHandsItsFilesOver: a command gets sandboxctl's own files, and writes
// more to them than the policy lets pass through the daemon (1 MiB); a file that
// does not go into a jail is passed on as before.
func TestCtlHandsItsFilesOver(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	text := strings.Repeat("a line of input\n", 1<<17)
	if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, in, script, want string
		flags                  []string
	}{
		{"file to file", in, "cat", text, []string{"-i"}},
		{"without -i nothing is read", in, "cat; echo end", "end\n", nil},
		{"through the daemon", in, "wc -l", "131072\n", []string{"-i", "--descriptors", "none"}},
		{"what only holds settings", "/proc/sys/kernel/ostype", "cat", "Linux\n", []string{"-i"}},
		{"both outputs", os.DevNull, "echo out; echo err >&2", "out\nerr\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdin, err := os.Open(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			stdout, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer stdout.Close()
			args := append(append([]string{"exec"}, tt.flags...), who, "--", "sh", "-c", tt.script)
			cmd := sys.CtlCommand(deadline(t), args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stdout
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(out); err != nil || string(got) != tt.want {
				t.Errorf("%d bytes, %v; want %d: %.80q", len(got), err, len(tt.want), got)
			}
		})
	}
}
