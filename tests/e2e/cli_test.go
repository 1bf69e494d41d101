package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/tests/internal/harness"
)

func ctl(t *testing.T, stdin string, args ...string) harness.Outcome {
	t.Helper()
	o, err := sys.Ctl(deadline(t), stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	noSecret(t, []byte(o.Stdout+o.Stderr))
	return o
}

// TestCtl holds sandboxctl's commands and exit codes: 0 ok, 1 the code failed or
// was killed, 2 wrong usage, 3 refused, 4 no daemon; exec passes on its own.
func TestCtl(t *testing.T) {
	who, plain := tenant(t, harness.AgentPrefix), tenant(t, harness.IsolatePrefix)
	dir, out := t.TempDir(), t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	double := file("double.ts", "export default (n: number): number => n * 2")
	fails := file("fails.js", "export default () => {\n  throw new Error('no rows')\n}")
	loop := file("loop.js", "export default () => { for (;;); }")
	tests := []struct {
		name  string
		stdin string
		args  []string
		code  int
		says  []string
	}{
		{"run", "", []string{"run", "-t", who, "--input", "21", double}, 0, []string{"42"}},
		{"run from stdin", "export default () => 'piped'", []string{"run", "-t", who, "-l", "js", "-"}, 0, []string{"piped"}},
		{"script from stdin", "const n = await Promise.resolve(20);\nconsole.log('printed', n);\nreturn n + input.m", []string{"run", "-t", who, "-l", "js", "--input", `{"m":22}`, "-"}, 0, []string{"printed 20", "42"}},
		{"script that only prints", "console.log('hello')", []string{"run", "-t", who, "-l", "ts", "-"}, 0, []string{"hello"}},
		{"script without an export", "function handler(input) { return 1 }", []string{"run", "-t", who, "-l", "js", "-"}, 3, []string{"no default export", "add `export default handler;`"}},
		{"run that throws", "", []string{"run", "-t", who, fails}, 1, []string{"no rows", "fails.js:2"}},
		{"run that is killed", "", []string{"run", "-t", who, loop}, 1, []string{"limit_exceeded", "cpu"}},
		{"run that is refused", "", []string{"run", "-t", harness.Stranger, loop}, 3, []string{"denied"}},
		{"run towards a host that is not granted", "", []string{"run", "-t", who, "--allow", harness.DeniedHost, double}, 3, []string{harness.DeniedHost}},
		{"wrong usage", "", []string{"run", "--nonsense"}, 2, []string{"nonsense"}},
		{"no such command", "", []string{"fly"}, 2, []string{"fly"}},
		{"no daemon", "", []string{"--socket", filepath.Join(dir, "none.sock"), "status"}, 4, []string{"none.sock"}},
		{"exec", "", []string{"exec", who, "--", "sh", "-c", "echo out; echo err >&2; exit 5"}, 5, []string{"out", "err"}},
		{"exec in a jail that is not granted", "", []string{"exec", plain, "--", "true"}, 3, []string{"denied"}},
		{"exec in the background", "", []string{"exec", "--background", "--id", "bg", who, "--", "sh", "-c", "echo started; exec sleep 1000"}, 0, nil},
		{"ps", "", []string{"ps", who}, 0, []string{"bg", "running"}},
		{"wait", "", []string{"wait", "--log", "started", who, "bg"}, 0, nil},
		{"logs", "", []string{"logs", who, "bg"}, 0, []string{"started"}},
		{"kill", "", []string{"kill", who, "bg"}, 0, nil},
		{"jail list", "", []string{"jail", "list"}, 0, []string{who}},
		{"jail show", "", []string{"jail", "show", who}, 0, []string{who, "running"}},
		{"ls", "", []string{"ls", who, "/"}, 0, []string{"workspace", "usr"}},
		{"cp a folder in", "", []string{"cp", dir, who + ":tree"}, 0, nil},
		{"cp a folder out", "", []string{"cp", who + ":tree", filepath.Join(out, "tree")}, 0, nil},
		{"cp over what is there", "", []string{"cp", who + ":tree", filepath.Join(out, "tree")}, 2, []string{"exists"}},
		{"cp a file in", "", []string{"cp", double, who + ":f"}, 0, nil},
		{"cat", "", []string{"cat", who, "f"}, 0, []string{"export"}},
		{"snapshot create", "", []string{"snapshot", "create", "--label", "before", who}, 0, []string{"snap-", "before"}},
		{"snapshot list", "", []string{"snapshot", "list", who}, 0, []string{"before", "complete"}},
		{"snapshot restore without one", "", []string{"snapshot", "restore", who, "snap-0000000000000000"}, 3, []string{"not_found"}},
		{"snapshot rm", "", []string{"snapshot", "rm", who, "snap-0000000000000000"}, 0, nil},
		{"diff", "", []string{"diff", who}, 0, []string{"added", "/workspace/f"}},
		{"export", "", []string{"export", who, filepath.Join(out, "all.tar")}, 0, nil},
		{"export to standard output", "", []string{"export", who, "-"}, 0, []string{"workspace/f"}},
		{"port expose", "", []string{"port", "expose", who, "8000"}, 0, []string{"http://", "localhost"}},
		{"port list", "", []string{"port", "list", who}, 0, []string{"8000"}},
		{"port close", "", []string{"port", "close", who, "8000"}, 0, nil},
		{"jail destroy", "", []string{"jail", "destroy", who}, 0, nil},
		{"jail show without one", "", []string{"jail", "show", who}, 3, []string{"not_found"}},
		{"runs list", "", []string{"runs", "list"}, 0, []string{who}},
		{"audit verify", "", []string{"audit", "verify"}, 0, nil},
		{"status", "", []string{"status"}, 0, []string{"ready"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := ctl(t, tt.stdin, tt.args...)
			if o.Code != tt.code {
				t.Errorf("sandboxctl %s: exit code %d, want %d\n%s%s", strings.Join(tt.args, " "), o.Code, tt.code, o.Stdout, o.Stderr)
			}
			for _, word := range tt.says {
				if !strings.Contains(o.Stdout+o.Stderr, word) {
					t.Errorf("sandboxctl %s does not say %q:\n%s%s", strings.Join(tt.args, " "), word, o.Stdout, o.Stderr)
				}
			}
		})
	}
}

func TestCtlJSON(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	for _, args := range [][]string{{"status"}, {"doctor"}, {"jail", "list"}, {"ps", who}, {"runs", "list"}} {
		if args[0] == "ps" {
			sh(t, who, "true")
		}
		o := ctl(t, "", append([]string{"--json"}, args...)...)
		if !json.Valid([]byte(o.Stdout)) {
			t.Errorf("sandboxctl --json %s prints %q", strings.Join(args, " "), o.Stdout)
		}
	}
}

func TestCtlDoctor(t *testing.T) {
	o := ctl(t, "", "doctor")
	if !strings.Contains(strings.ToLower(o.Stdout), "landlock") {
		t.Errorf("doctor says\n%s%s", o.Stdout, o.Stderr)
	}
	if harness.UnderSystemd() && o.Code != 0 {
		t.Errorf("on a host that has everything doctor ends with %d:\n%s%s", o.Code, o.Stdout, o.Stderr)
	}
}
