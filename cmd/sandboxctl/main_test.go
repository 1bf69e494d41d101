package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/daemon/api"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":        "plain\ttext\n",
		"käse 日本":              "käse 日本",
		"\x1b[31mred\x1b[0m":   `\x1b[31mred\x1b[0m`,
		"a\rb\x00c\x7f":        `a\x0db\x00c\x7f`,
		"\u009b31m":            `\u009b31m`,
		"\u202eevil\u2066":     `\u202eevil\u2066`,
		"\xff\xc3":             `\xff\xc3`,
		"line\u2028separator":  `line\u2028separator`,
		"\x1b]0;title\x07tail": `\x1b]0;title\x07tail`,
	} {
		if got := escape(in); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
	if got := oneLine("a\nb\x1b"); got != `a\nb\x1b` {
		t.Errorf("one line gives %q", got)
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("\x1b[2J")
	f.Add("\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range escape(s) {
			if (r < 0x20 && r != '\n' && r != '\t') || (r >= 0x7f && r < 0xa0) || r == '\u202e' {
				t.Fatalf("%q leaves %U", s, r)
			}
		}
	})
}

// answers is a daemon that gives each path one answer.
type answers map[string]struct {
	status int
	body   string
}

func (a answers) start(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := a[r.Method+" "+r.URL.Path]
		if !ok {
			t.Errorf("unexpected call %s %s", r.Method, r.URL)
		}
		w.WriteHeader(answer.status)
		_, _ = w.Write([]byte(answer.body))
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	return path
}

func call(socket string, args ...string) (code int, stdout, stderr string) {
	var out, errOut bytes.Buffer
	code = run(context.Background(), append([]string{"--socket", socket}, args...), strings.NewReader(""), &out, &errOut)
	return code, out.String(), errOut.String()
}

func line(t *testing.T, events ...api.Event) string {
	t.Helper()
	var b strings.Builder
	for _, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(text, '\n'))
	}
	return b.String()
}

func TestExitCodes(t *testing.T) {
	three := 3
	raw := api.Event{Seq: 2, Type: api.EventStdout}
	raw.SetData([]byte("\x1b[1m\xff"))
	socket := answers{
		"POST /v1/tenants/ok/run": {200, line(t, api.Event{Type: api.EventStarted}, api.Event{Type: api.EventResult,
			Run: &api.Run{RunID: "r", Status: api.StatusOK, Phase: "finished", Result: json.RawMessage(`{"a":1}`)}})},
		"POST /v1/tenants/bad/run": {200, line(t, api.Event{Type: api.EventResult,
			Run: &api.Run{RunID: "r", Status: api.StatusKilled, Phase: "finished", Error: &api.Error{Code: api.CodeLimit, Limit: "cpu", Message: "too long"}}})},
		"POST /v1/tenants/refused/run": {200, line(t, api.Event{Type: api.EventResult,
			Run: &api.Run{RunID: "r", Status: api.StatusRefused, Phase: "not_started", Error: &api.Error{Code: api.CodeRejected, Message: "syntax", Position: &api.Position{File: "f.js", Line: 2, Column: 5}, SourceLine: "\tlet x = ;"}}})},
		"POST /v1/tenants/cut/run": {200, line(t, api.Event{Type: api.EventStarted})},
		"POST /v1/tenants/bob/jail/exec": {200, line(t, api.Event{Type: api.EventStarted}, raw, api.Event{Type: api.EventResult,
			Exec: &api.Process{ExecID: "e", State: "exited", ExitCode: &three}})},
		"POST /v1/tenants/sig/jail/exec":   {200, line(t, api.Event{Type: api.EventResult, Exec: &api.Process{Signal: "SIGKILL", TimedOut: true, State: "exited"}})},
		"POST /v1/tenants/alice/jail/exec": {403, `{"error":{"code":"denied","message":"no jail","hint":"ask"}}`},
		"GET /v1/audit/verify":             {200, `{"ok":false,"problem":{"file":"a","line":3,"kind":"changed","message":"m"}}`},
		"GET /v1/runs/bob/events":          {404, `{"error":{"code":"not_found","message":"no run"}}`},
		"GET /v1/status":                   {200, `{"state":"ready"}`},
	}.start(t)
	file := filepath.Join(t.TempDir(), "f.js")
	if err := os.WriteFile(file, []byte("export default 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		args     []string
		code     int
		out, err string // contained
	}{
		{"run", []string{"run", "-t", "ok", file}, 0, `"a": 1`, "ok in"},
		{"run killed", []string{"run", "-t", "bad", file}, 1, "", "limit_exceeded (cpu): too long"},
		{"run refused", []string{"run", "-t", "refused", file}, 3, "", "at: f.js:2:5\n     let x = ;\n"},
		{"run cut off", []string{"run", "-t", "cut", file}, 1, "", "without a result"},
		{"exec", []string{"exec", "bob", "--", "x"}, 3, "\x1b[1m\xff", ""},
		{"exec without dashes", []string{"exec", "bob", "x", "--flag"}, 3, "", ""},
		{"exec signal", []string{"exec", "sig", "--", "x"}, 137, "", "killed"},
		{"exec refused", []string{"exec", "alice", "--", "x"}, 3, "", "denied: no jail\n  hint: ask"},
		{"exec refused, as JSON", []string{"--json", "exec", "alice", "--", "x"}, 3, "", `{"error":{"code":"denied","message":"no jail","hint":"ask"}}` + "\n"},
		{"exec's flag after the tenant", []string{"exec", "bob", "-it", "--", "bash"}, 2, "", "before TENANT: exec -it bob -- ARGV…"},
		{"tenant as a flag", []string{"kv", "get", "-t", "alice", "k"}, 2, "", "the tenant stands without one: kv get TENANT KEY"},
		{"tenant without its flag", []string{"fn", "list", "alice"}, 2, "", "the tenant is given with -t"},
		{"bad duration", []string{"run", "--cpu", "10", file}, 2, "", `--cpu: "10" is not a duration, such as 500ms`},
		{"bad number", []string{"run", "--seed", "x", file}, 2, "", `--seed: "x" is not a whole number`},
		{"tenant and path as for cp", []string{"ls", "bob:project"}, 2, "", "stand apart here: ls TENANT [PATH]"},
		{"logs of a tenant", []string{"logs", "bob"}, 3, "", "logs TENANT EXEC"},
		{"verify", []string{"audit", "verify"}, 1, "changed: a, line 3", ""},
		{"status as JSON", []string{"--json", "status"}, 0, `"state": "ready"`, ""},
		{"no command", []string{"nope"}, 2, "", "unknown command"},
		{"no flag", []string{"status", "--nope"}, 2, "", "unknown flag"},
		{"missing argument", []string{"exec", "bob"}, 2, "", "TENANT -- ARGV"},
		{"missing argument names the help", []string{"fn", "deploy"}, 2, "", "sandboxctl: fn deploy takes NAME FILE [FILE…]\n  hint: sandboxctl fn deploy --help\n"},
		{"missing subcommand", []string{"port"}, 2, "", "expose, list"},
		{"no such subcommand", []string{"snapshot", "diff", "bob"}, 2, "", `snapshot has no "diff", it has create, list`},
		{"bad port", []string{"port", "expose", "bob", "x"}, 2, "", "not a port"},
		{"bad input", []string{"run", "--input", "{", file}, 2, "", "not JSON"},
		{"bad env", []string{"run", "--env", "x", file}, 2, "", "NAME=VALUE"},
		{"no file", []string{"run", file + "x.js"}, 2, "", "no such file or directory\n"},
		{"no language", []string{"run", "-"}, 2, "", "-l js"},
		{"binding and none", []string{"run", "--bind", "KV", "--no-bindings", file}, 2, "", "exclude each other"},
		{"bad size", []string{"run", "--memory", "lots", file}, 2, "", "--memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errOut := call(socket, tt.args...)
			if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errOut, tt.err) {
				t.Errorf("exit %d, stdout %q, stderr %q; want %d, %q, %q", code, out, errOut, tt.code, tt.out, tt.err)
			}
		})
	}
	if _, _, errOut := call(socket, "run", file+"x.js"); strings.Contains(errOut, "hint") {
		t.Errorf("a missing file is answered with help: %q", errOut)
	}
	if code, _, errOut := call(filepath.Join(t.TempDir(), "none"), "status"); code != 4 || !strings.Contains(errOut, "hint") {
		t.Errorf("without a daemon: exit %d, %q", code, errOut)
	}
}

// What a Wasm program printed as its result is not printed again, however it
// spaced it.
func TestWasmResultIsPrintedOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		printed, result string
		want            string
	}{
		"as it is": {"{\"n\":2}\n", `{"n":2}`, "{\"n\":2}\n"},
		"spaced":   {"{\"n\": 2}\n", `{"n":2}`, "{\"n\": 2}\n"},
		"other":    {"[1]\n", `{"n":2}`, "[1]\n{\n  \"n\": 2\n}\n"},
		"no JSON":  {"hi\n", `2`, "hi\n2\n"},
		"nothing":  {"", `2`, "2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out := api.Event{Seq: 2, Type: api.EventStdout}
			out.SetData([]byte(tt.printed))
			socket := answers{"POST /v1/tenants/t/run": {200, line(t, out, api.Event{Type: api.EventResult, Run: &api.Run{RunID: "r", Language: "wasm",
				Status: api.StatusOK, Phase: "finished", Stdout: tt.printed, Result: json.RawMessage(tt.result)}})}}.start(t)
			file := filepath.Join(t.TempDir(), "f.wasm")
			if err := os.WriteFile(file, []byte("\x00asm"), 0o600); err != nil {
				t.Fatal(err)
			}
			if code, got, errOut := call(socket, "run", "-t", "t", file); code != 0 || got != tt.want {
				t.Errorf("exit %d, stdout %q, stderr %q; want %q", code, got, errOut, tt.want)
			}
		})
	}
}

func TestCopyOutOverwritesNothing(t *testing.T) {
	socket := answers{"GET /v1/tenants/bob/jail/files/workspace/x": {200, `{"type":"file"}`}}.start(t)
	file := filepath.Join(t.TempDir(), "keep")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := call(socket, "cp", "bob:x", file); code != 2 {
		t.Errorf("exit %d", code)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "old" {
		t.Errorf("the file is %q, %v", b, err)
	}
	if code, _, errOut := call(socket, "cp", "bob:x", file+"2"); code != 0 {
		t.Errorf("exit %d, %s", code, errOut)
	}
}

func TestSizesAndTimesForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 30: "1.0 GiB", 1 << 62: "4194304.0 TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d gives %q, want %q", n, got, want)
		}
	}
	if got := shorten("äöüäöü", 4); got != "äöü…" {
		t.Errorf("shortened to %q", got)
	}
}
