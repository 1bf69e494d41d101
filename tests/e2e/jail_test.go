package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

func TestExecOutcomes(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	tests := []struct {
		name           string
		req            api.ExecRequest
		code           int // -1: none
		signal         string
		stdout, stderr string
	}{
		{"true", api.ExecRequest{Argv: []string{"true"}}, 0, "", "", ""},
		{"exit code", api.ExecRequest{Command: "exit 42"}, 42, "", "", ""},
		{"both outputs", api.ExecRequest{Command: "echo out; echo err >&2"}, 0, "", "out\n", "err\n"},
		{"arguments as they are", api.ExecRequest{Argv: []string{"printf", "%s|", "a b", "$HOME", "*", ""}}, 0, "", "a b|$HOME|*||", ""},
		{"killed by a signal", api.ExecRequest{Command: "kill -TERM $$"}, -1, "SIGTERM", "", ""},
		{"128+n is an exit code", api.ExecRequest{Command: "exit 143"}, 143, "", "", ""},
		{"environment", api.ExecRequest{Command: "echo $SUITE $OWN", Env: map[string]string{"OWN": "mine"}}, 0, "", "whole-system mine\n", ""},
		{"folder", api.ExecRequest{Argv: []string{"pwd"}, Cwd: "/tmp"}, 0, "", "/tmp\n", ""},
		{"workspace by default", api.ExecRequest{Argv: []string{"pwd"}}, 0, "", "/workspace\n", ""},
		{"standard input is empty", api.ExecRequest{Argv: []string{"cat"}}, 0, "", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := exec(t, who, tt.req)
			code := -1
			if p.ExitCode != nil {
				code = *p.ExitCode
			}
			if code != tt.code || p.Signal != tt.signal || p.Stdout != tt.stdout || p.Stderr != tt.stderr || p.State != "exited" {
				t.Errorf("%s, state %s, stdout %q, stderr %q", ended(p), p.State, p.Stdout, p.Stderr)
			}
			if p.Receipt == nil || p.Usage.Wall.Used == nil {
				t.Errorf("no receipt or no usage: %+v", p)
			}
		})
	}
	wantError(t, do(t, "POST", jailPath(who)+"/exec", api.ExecRequest{Argv: []string{"no-such-program"}}), 400, api.CodeInvalidRequest, "argv[0]")
}

// TestExecStartsWithoutAuthority: what /proc says of a command in a jail.
func TestExecStartsWithoutAuthority(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	status := sh(t, who, "cat /proc/self/status")
	for _, line := range []string{
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
		"NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(status, line) {
			t.Errorf("/proc/self/status lacks %q:\n%s", line, status)
		}
	}
	for what, line := range map[string]string{
		"is uid 1000":              `test "$(id -u)" = 1000`,
		"sees few processes":       `test "$(ls -d /proc/[0-9]* | wc -l)" -lt 10`,
		"has no sysfs":             `! test -e /sys/kernel`,
		"cannot write /usr":        `! touch /usr/x 2>/dev/null`,
		"cannot write /proc/sys":   `test -z "$(find /proc/sys -type f -writable 2>/dev/null | head -1)"`,
		"cannot mount":             `! mount -t tmpfs none /tmp 2>/dev/null`,
		"cannot make namespaces":   `! unshare -U true 2>/dev/null`,
		"has no devices but a few": `test -z "$(ls /dev | grep -vxE 'null|zero|full|random|urandom|tty|ptmx|pts|shm|fd|stdin|stdout|stderr|mqueue|console|core')"`,
		"has its workspace":        `echo x > /workspace/x && rm /workspace/x`,
		"sees no folder of ours":   `! ls /var/lib/sandboxd /run/sandboxd /etc/sandboxd 2>/dev/null | grep -q .`,
		"makes files others read":  `umask | grep -qx 0022`,
	} {
		p := exec(t, who, api.ExecRequest{Command: line})
		if p.ExitCode == nil || *p.ExitCode != 0 {
			t.Errorf("a command %s: %s %s%s", what, ended(p), p.Stdout, p.Stderr)
		}
	}
}

func TestExecTimeoutKillsItsTreeOnly(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	exec(t, who, api.ExecRequest{Command: "exec sleep 1000", Background: true, ExecID: "bystander"})
	p := exec(t, who, api.ExecRequest{Command: "setsid sleep 2000 & trap '' TERM; sleep 2000", Timeout: policy.Duration(harness.Scale(500 * time.Millisecond))})
	if !p.TimedOut || p.ExitCode != nil || p.Signal != "SIGKILL" {
		t.Errorf("%s", ended(p))
	}
	running := func() string { return sh(t, who, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '") }
	eventually(t, "its tree is gone", func() bool { return !strings.Contains(running(), "sleep 2000") })
	if left := running(); !strings.Contains(left, "sleep 1000") {
		t.Errorf("the bystander is gone, too; there run: %s", left)
	}
}

func TestExecOutputIsCut(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	p := exec(t, who, api.ExecRequest{Command: "head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2"})
	if !p.Truncated || len(p.Stdout) > 1<<20 || len(p.Stdout) < 512<<10 {
		t.Errorf("truncated %t after %d bytes; the policy grants 1 MiB", p.Truncated, len(p.Stdout))
	}
}

func TestExecStream(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	events := stream(t, "POST", jailPath(who)+"/exec", api.ExecRequest{Command: `printf 'a\377b'; printf c >&2; exit 7`, ExecID: "s1"}, nil)
	var out []byte
	for _, e := range events {
		if e.Type == api.EventStdout {
			b, err := e.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, b...)
		}
	}
	if string(out) != "a\xffb" {
		t.Errorf("stdout %q", out)
	}
	last := events[len(events)-1]
	if events[0].Type != api.EventStarted || last.Type != api.EventResult || last.Exec == nil || last.Exec.ExitCode == nil || *last.Exec.ExitCode != 7 {
		t.Errorf("events begin with %s and end with %+v", events[0].Type, last)
	}
	again := stream(t, "GET", jailPath(who)+"/processes/s1/events?follow=true&after=1", nil, nil)
	if len(again) != len(events)-1 || again[len(again)-1].Type != api.EventResult {
		t.Errorf("later %d events of %d", len(again), len(events))
	}
}

func TestExecIDRunsOnce(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	req := api.ExecRequest{Command: "echo ran >> count; wc -l < count", ExecID: "once"}
	first, again := exec(t, who, req), exec(t, who, req)
	if strings.TrimSpace(first.Stdout) != "1" || again.Stdout != first.Stdout {
		t.Errorf("first %q, again %q", first.Stdout, again.Stdout)
	}
}

func TestExecStdinAndSignal(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	exec(t, who, api.ExecRequest{Argv: []string{"cat"}, Stdin: true, Background: true, ExecID: "cat"})
	path := jailPath(who) + "/processes/cat"
	want(t, "POST", path+"/stdin", []byte("one "), nil)
	want(t, "POST", path+"/stdin?close=true", []byte("two"), nil)
	var w api.WaitAnswer
	want(t, "POST", path+"/wait", api.WaitRequest{Exit: true}, &w)
	var text []byte
	for _, e := range stream(t, "GET", path+"/events", nil, nil) {
		if e.Type == api.EventStdout {
			b, _ := e.Bytes()
			text = append(text, b...)
		}
	}
	if string(text) != "one two" {
		t.Errorf("cat printed %q", text)
	}
	exec(t, who, api.ExecRequest{Argv: []string{"sleep", "1000"}, Background: true, ExecID: "sleep"})
	want(t, "POST", jailPath(who)+"/processes/sleep/signal", api.SignalRequest{Signal: "TERM"}, nil)
	want(t, "POST", jailPath(who)+"/processes/sleep/wait", api.WaitRequest{Exit: true}, &w)
	if w.Process.Signal != "SIGTERM" {
		t.Errorf("%s", ended(w.Process))
	}
	wantError(t, do(t, "POST", jailPath(who)+"/processes/nobody/signal", api.SignalRequest{Signal: "TERM"}), 404, api.CodeNotFound, "")
}

const server = `python3 -u -c '
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Type", "text/html"); self.end_headers()
        self.wfile.write(b"<h1>page of %s</h1>" % self.path.encode())
print("listening soon")
http.server.HTTPServer(("127.0.0.1", 8000), H).serve_forever()'`

// preview asks the preview listener as a browser would: names under localhost
// are this machine.
func preview(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, sys.Preview)
	}}}
	req, err := http.NewRequestWithContext(deadline(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("preview %s: %v", url, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestServerAndPreview(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	p := exec(t, who, api.ExecRequest{Command: server, Background: true, ExecID: "dev"})
	if p.State != "running" || !p.Background {
		t.Fatalf("in the background it is %s", p.State)
	}
	path := jailPath(who) + "/processes/dev"
	var w api.WaitAnswer
	want(t, "POST", path+"/wait", api.WaitRequest{LogRegexp: "listening s..n", Timeout: policy.Duration(harness.Scale(10 * time.Second))}, &w)
	want(t, "POST", path+"/wait", api.WaitRequest{Port: 8000, Timeout: policy.Duration(harness.Scale(10 * time.Second))}, &w)
	var port api.Port
	want(t, "POST", jailPath(who)+"/ports/8000", api.PortRequest{}, &port)
	status, page := preview(t, port.URL+"x")
	if status != 200 || page != "<h1>page of /x</h1>" {
		t.Fatalf("the page comes as %d %q from %s", status, page, port.URL)
	}
	if !strings.Contains(port.URL, port.Token) || len(port.Token) < 20 {
		t.Errorf("url %q, token %q", port.URL, port.Token)
	}
	guess := strings.Replace(port.URL, port.Token, strings.Repeat("a", len(port.Token)), 1)
	if status, page := preview(t, guess); status/100 == 2 {
		t.Errorf("a guessed token shows %q", page)
	}
	var list api.ProcessList
	want(t, "GET", jailPath(who)+"/processes", nil, &list)
	if !slices.ContainsFunc(list.Processes, func(p api.Process) bool { return p.ExecID == "dev" && p.State == "running" }) {
		t.Errorf("processes %+v", list.Processes)
	}
	var jail api.Jail
	want(t, "GET", jailPath(who), nil, &jail)
	if len(jail.Ports) != 1 || jail.Ports[0].Port != 8000 {
		t.Errorf("ports %+v", jail.Ports)
	}
	want(t, "DELETE", jailPath(who)+"/ports/8000", nil, nil)
	if status, _ := preview(t, port.URL); status/100 == 2 {
		t.Errorf("after it was closed the port still answers %d", status)
	}
	want(t, "POST", jailPath(who)+"/ports/8000", api.PortRequest{}, &port)
	want(t, "DELETE", path, nil, nil)
	if status, _ := preview(t, port.URL); status < 500 {
		t.Errorf("without its server the port answers %d", status)
	}
	want(t, "DELETE", jailPath(who), nil, nil)
	if status, _ := preview(t, port.URL); status != http.StatusGone && status != http.StatusNotFound {
		t.Errorf("without its jail the port answers %d", status)
	}
}

func TestFiles(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	files := jailPath(who) + "/files"
	sh(t, who, "mkdir -p src/deep && echo one > src/a.txt && ln -s /etc/passwd src/link && mkfifo src/pipe && echo two > src/deep/b.txt")
	var list api.FileList
	want(t, "GET", files+"/workspace/src?list=true&depth=2", nil, &list)
	got := map[string]string{}
	for _, f := range list.Files {
		got[strings.TrimPrefix(f.Name, "/workspace/src/")] = f.Type
	}
	for name, kind := range map[string]string{"a.txt": "file", "link": "symlink", "pipe": "fifo", "deep": "dir", "deep/b.txt": "file"} {
		if got[name] != kind {
			t.Errorf("%s is %q, want %q; all: %v", name, got[name], kind, got)
		}
	}
	if a := want(t, "GET", files+"/workspace/src/a.txt", nil, nil); string(a.Body) != "one\n" {
		t.Errorf("a.txt holds %q", a.Body)
	}
	content := strings.Repeat("0123456789abcdef", 1<<16)
	want(t, "PUT", files+"/workspace/big.bin", []byte(content), nil)
	if got := sh(t, who, "wc -c < big.bin; stat -c %u:%a big.bin"); got != "1048576\n1000:644\n" {
		t.Errorf("inside, big.bin is %q", got)
	}
	for path, status := range map[string]int{
		"/workspace/src/pipe": 409, "/workspace/src": 409, "/workspace/none": 404,
	} {
		if a := do(t, "GET", files+path, nil); a.Status != status {
			t.Errorf("%s is answered %d, want %d: %s", path, a.Status, status, a.Body)
		}
	}
	want(t, "DELETE", files+"/workspace/src", nil, nil)
	if got := sh(t, who, "ls -A"); got != "big.bin\n" {
		t.Errorf("left are %q", got)
	}
}

// TestFilesStayInside: links of the tenant's making lead nowhere outside.
func TestFilesStayInside(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	files := jailPath(who) + "/files"
	sh(t, who, "ln -s / root; ln -s ../../../../../../../../etc up; ln -s /proc/1/root proc; ln -s /workspace/root/etc/hostname name; ln -s /nowhere/new new")
	for _, path := range []string{
		"/workspace/root/etc/shadow", "/workspace/up/shadow", "/workspace/proc/etc/shadow", "/../../../etc/shadow", "/workspace/../../etc/shadow", "/workspace/%2e%2e/%2e%2e/etc/shadow",
		"/proc/1/root/etc/shadow", "/proc/self/environ", "/proc/self/root/etc/shadow", "/dev/mem",
	} {
		a := do(t, "GET", files+path, nil)
		if a.Status/100 == 2 {
			t.Errorf("%s is answered with %d bytes: %.60q", path, len(a.Body), a.Body)
		}
	}
	for _, path := range []string{"/workspace/new", "/workspace/up/sandboxd-e2e", "/etc/sandboxd-e2e", "/usr/sandboxd-e2e"} {
		a := do(t, "PUT", files+path, []byte("x"))
		if a.Status/100 == 2 {
			if p := exec(t, who, api.ExecRequest{Argv: []string{"cat", path}}); p.Stdout != "x" {
				t.Errorf("%s was written, and not inside the jail", path)
			}
		}
	}
}

func TestTwoTenantsSeeNothingOfEachOther(t *testing.T) {
	alice, bob := tenant(t, harness.AgentPrefix+"alice-"), tenant(t, harness.AgentPrefix+"bob-")
	sh(t, bob, "echo of bob > /workspace/mine; echo of bob > /tmp/mine; cp /bin/sleep /tmp/bobsleep")
	exec(t, bob, api.ExecRequest{Command: server, Background: true, ExecID: "dev"})
	want(t, "POST", jailPath(bob)+"/processes/dev/wait", api.WaitRequest{Port: 8000, Timeout: policy.Duration(harness.Scale(10 * time.Second))}, nil)
	address := strings.TrimSpace(sh(t, bob, `python3 -c 'import socket; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(("`+sys.World.Addr.String()+`",9)); print(s.getsockname()[0])' 2>/dev/null || echo none`))
	for what, line := range map[string]string{
		"files":        `! cat /workspace/mine /tmp/mine 2>/dev/null`,
		"processes":    `! cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q 'http[.]server'`,
		"listeners":    `! grep -qi ':1F40 ' /proc/net/tcp`,
		"own loopback": `! curl -s --noproxy '*' -m 3 http://127.0.0.1:8000/`,
		"his address":  `! curl -s --noproxy '*' -m 3 http://` + address + `:8000/`,
		"his gateway":  `! curl -s --noproxy '*' -m 3 http://` + address + `:3128/`,
		"uids":         `test "$(cat /proc/self/uid_map | wc -l)" = 1`,
	} {
		if p := exec(t, alice, api.ExecRequest{Command: line}); p.ExitCode == nil || *p.ExitCode != 0 {
			t.Errorf("alice sees bob's %s: %s %s%s", what, ended(p), p.Stdout, p.Stderr)
		}
	}
	var list api.ProcessList
	want(t, "GET", jailPath(alice)+"/processes", nil, &list)
	if slices.ContainsFunc(list.Processes, func(p api.Process) bool { return p.ExecID == "dev" }) {
		t.Error("the API shows bob's process among alice's")
	}
	wantError(t, do(t, "GET", jailPath(alice)+"/processes/dev", nil), 404, api.CodeNotFound, "")
}

func TestJailLife(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	wantError(t, do(t, "GET", jailPath(who), nil), 404, api.CodeNotFound, "")
	var jail api.Jail
	want(t, "PUT", jailPath(who), api.JailRequest{Limits: &policy.Limits{Pids: 32}}, &jail)
	if jail.State != "running" || jail.Limits.Pids != 32 || jail.Deadline.IsZero() || jail.Template != "host" {
		t.Errorf("created: %+v", jail)
	}
	created := jail.Created
	want(t, "PUT", jailPath(who), api.JailRequest{}, &jail)
	if !jail.Created.Equal(created) {
		t.Error("the second request made another jail")
	}
	sh(t, who, "echo kept > kept; echo gone > /tmp/gone")
	want(t, "POST", jailPath(who)+"/freeze", nil, &jail)
	if jail.State != "frozen" {
		t.Errorf("state %s after freeze", jail.State)
	}
	if got := sh(t, who, "cat kept"); got != "kept\n" {
		t.Errorf("the next request thaws it and reads %q", got)
	}
	var list api.JailList
	want(t, "GET", "/v1/jails", nil, &list)
	if !slices.ContainsFunc(list.Jails, func(j api.Jail) bool { return j.Tenant == who && j.State == "running" }) {
		t.Errorf("jails %+v", list.Jails)
	}
	want(t, "DELETE", jailPath(who), nil, nil)
	want(t, "DELETE", jailPath(who), nil, nil)
	wantError(t, do(t, "GET", jailPath(who), nil), 404, api.CodeNotFound, "")
	if got := sh(t, who, "ls -A /workspace /home/user /tmp | grep -v :"); strings.TrimSpace(got) != "" {
		t.Errorf("a new jail has of the deleted one: %q, want nothing", got)
	}
	want(t, "DELETE", jailPath(who), nil, nil)
	want(t, "PUT", jailPath(who), api.JailRequest{Workspace: "ephemeral"}, &jail)
	sh(t, who, "echo x > y")
}

// TestJailMaximumLife: a jail ends by itself, and with it what runs in it.
func TestJailMaximumLife(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	var jail api.Jail
	want(t, "PUT", jailPath(who), api.JailRequest{MaxLifetime: policy.Duration(harness.Scale(2 * time.Second))}, &jail)
	p := exec(t, who, api.ExecRequest{Argv: []string{"sleep", "1000"}})
	if p.Cause == "" || p.Signal != "SIGKILL" {
		t.Errorf("the command in it: %s", ended(p))
	}
	eventually(t, "the jail is gone", func() bool { return do(t, "GET", jailPath(who), nil).Status == 404 })
}

func TestRunInJail(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	r := run(t, who, api.RunRequest{Language: "shell", Code: "read line; echo got $line; exit 3", Input: json.RawMessage(`"in"`), Needs: []string{"process"}})
	if r.Environment != api.EnvironmentJail || r.ExitCode == nil || *r.ExitCode != 3 || r.Stdout != "got \"in\"\n" {
		t.Errorf("environment %s, exit code %v, stdout %q, error %+v", r.Environment, r.ExitCode, r.Stdout, r.Error)
	}
	r = run(t, who, api.RunRequest{Language: "python", Code: "import sys\nprint(sum(range(5)))", Needs: []string{"filesystem"}})
	if r.Status != api.StatusOK || r.Stdout != "10\n" {
		t.Errorf("status %s, stdout %q, error %+v", r.Status, r.Stdout, r.Error)
	}
}

func TestNoJailWithoutAGrant(t *testing.T) {
	who := tenant(t, harness.IsolatePrefix)
	for _, a := range []*harness.Answer{
		do(t, "PUT", jailPath(who), api.JailRequest{}),
		do(t, "POST", jailPath(who)+"/exec", api.ExecRequest{Argv: []string{"true"}}),
		do(t, "POST", tenantPath(who)+"/run", api.RunRequest{Language: "js", Code: "1", Needs: []string{"process"}}),
	} {
		if e := a.Error(); a.Status != 403 || e == nil || e.Code != api.CodeDenied {
			t.Errorf("answer %d: %s", a.Status, a.Body)
		}
	}
	a := do(t, "POST", tenantPath(harness.Stranger)+"/run", api.RunRequest{Language: "js", Code: "1"})
	wantError(t, a, 403, api.CodeDenied, "")
}

func TestEgressOfAJail(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	mark := "jail-" + who
	out := sh(t, who, fmt.Sprintf("curl -sS -m 20 'https://%s/v1/things?%s' -H 'Authorization: Bearer mine'; curl -sS -m 20 -D- 'https://%s/v1/leak'; curl -sS -m 20 'https://%s/any?%s'",
		harness.APIHost, mark, harness.APIHost, harness.OtherHost, mark))
	noSecret(t, []byte(out))
	if !strings.Contains(out, `"path":"/v1/things"`) || !strings.Contains(out, "you_sent") || !strings.Contains(out, `"host":"`+harness.OtherHost+`"`) {
		t.Errorf("the world's answers: %s", out)
	}
	if !slices.ContainsFunc(sys.World.Requests(harness.APIHost), func(s harness.Seen) bool { return s.Query == mark && s.Authorised }) {
		t.Error("the world saw no request with the token")
	}
	if !slices.ContainsFunc(sys.World.Requests(harness.OtherHost), func(s harness.Seen) bool { return s.Query == mark && s.Header.Get("Authorization") == "" }) {
		t.Error("the other host saw no request, or one with a token")
	}
	// Nowhere inside: not in the environment, a file, or another process.
	everywhere := sh(t, who, `env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; find / -xdev -type f -size -200k -not -path '/usr/*' -not -path '/opt/*' -not -path '/proc/*' -exec cat {} + 2>/dev/null | tr -d '\0' | head -c 900000`)
	noSecret(t, []byte(everywhere))
	for _, line := range []string{
		"https://" + harness.DeniedHost + "/v1/x", "https://" + harness.APIHost + "/v2/x", "https://" + sys.World.Addr.String() + "/v1/x",
		"http://" + harness.OtherHost + "/v1/x", "https://" + harness.OtherHost + ":8443/", "http://127.0.0.1:3128/", "http://169.254.169.254/latest/meta-data",
	} {
		p := exec(t, who, api.ExecRequest{Command: "curl -sS -k -m 10 -o /dev/null -w '%{http_code} %{http_connect}' '" + line + "?" + mark + "'"})
		if strings.Contains(p.Stdout, "200 ") || strings.HasPrefix(p.Stdout, "2") {
			t.Errorf("%s: %q %q", line, p.Stdout, p.Stderr)
		}
	}
	for _, host := range []string{harness.DeniedHost, sys.World.Addr.String()} {
		if seen := sys.World.Requests(host); slices.ContainsFunc(seen, func(s harness.Seen) bool { return s.Query == mark }) {
			t.Errorf("%s saw %+v", host, seen)
		}
	}
}

// TestJailReachesNothingButTheProxy: around the proxy there is no way.
func TestJailReachesNothingButTheProxy(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	probe := `python3 - <<'EOF'
import socket, sys
gateway = __import__("os").environ["HTTPS_PROXY"].split("//")[1].split(":")[0]
open_ = []
for host in ["` + sys.World.Addr.String() + `", "` + sys.World.Gateway.String() + `", "127.0.0.1", gateway, "192.0.2.1", "10.0.0.1", "169.254.169.254"]:
    for port in (22, 25, 80, 443, 3128, 8080, 8443):
        s = socket.socket(); s.settimeout(0.3)
        if s.connect_ex((host, port)) == 0: open_.append("%s:%d" % ("gateway" if host == gateway else host, port))
        s.close()
print(" ".join(open_))
EOF`
	p := exec(t, who, api.ExecRequest{Command: probe, Timeout: policy.Duration(harness.Scale(60 * time.Second))})
	open := strings.Fields(p.Stdout)
	if p.ExitCode == nil || *p.ExitCode != 0 {
		t.Fatalf("%s %s", ended(p), p.Stderr)
	}
	// Ports 80 and 443 of any address are redirected to the proxy, which then
	// wants a name that a rule grants.
	for _, o := range open {
		_, port, _ := net.SplitHostPort(o)
		if port != "80" && port != "443" && o != "gateway:3128" {
			t.Errorf("%s is open", o)
		}
	}
	if !slices.Contains(open, "gateway:3128") {
		t.Errorf("the proxy itself is not reached: %s", open)
	}
	if seen := sys.World.Requests(sys.World.Addr.String()); len(seen) > 0 {
		t.Errorf("the world saw %+v", seen)
	}
	names := sh(t, who, `for h in `+harness.OtherHost+` `+harness.DeniedHost+` example.com localhost; do getent ahostsv4 $h >/dev/null && echo $h; done; true`)
	if got := strings.Fields(names); !slices.Contains(got, harness.OtherHost) || slices.Contains(got, harness.DeniedHost) || slices.Contains(got, "example.com") {
		t.Errorf("names that resolve inside: %v", got)
	}
	if out := sh(t, who, "curl -sS --noproxy '*' -m 20 https://"+harness.OtherHost+"/direct"); !strings.Contains(out, `"path":"/direct"`) {
		t.Errorf("a granted host without the proxy variables: %s", out)
	}
}
