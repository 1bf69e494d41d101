package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// changePolicy edits the policy file and has it put in force until the test
// ends.
func changePolicy(t *testing.T, edit func(string) string) {
	t.Helper()
	was, err := sys.WritePolicy(edit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := sys.WritePolicy(func(string) string { return was }); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), harness.Scale(30*time.Second))
		defer cancel()
		if o, err := sys.Ctl(ctx, "", "policy", "reload"); err != nil || o.Code != 0 {
			t.Errorf("the old policy: %v, %s", err, o.Stderr)
		}
	})
	if o := ctl(t, "", "policy", "reload"); o.Code != 0 {
		t.Fatalf("reload: %s", o.Stderr)
	}
}

// grant adds rules to those of agents. Each line is one rule in YAML's flow
// style; ADDRESSES stands for the world's.
func grant(rules ...string) func(string) string {
	at := fmt.Sprintf("addresses: [%s], resolve: [%s]", sys.World.Prefix, sys.World.Addr)
	var b strings.Builder
	for _, r := range rules {
		b.WriteString("      - {" + strings.ReplaceAll(r, "ADDRESSES", at) + "}\n")
	}
	return func(text string) string {
		return strings.Replace(text, "    egress:\n", "    egress:\n"+b.String(), 1)
	}
}

// revoke takes the rule for the other host away from agents.
func revoke(text string) string {
	rule := text[strings.Index(text, "      - host: "+harness.OtherHost):]
	rule = rule[:strings.Index(rule, "  plain:")]
	return strings.Replace(text, rule, "", 1)
}

// TestPolicyReloadCutsAndKeeps: what a new policy no longer grants is cut at
// once, in the middle of a connection, and what it grants as before goes on on
// the same connection.
func TestPolicyReloadCutsAndKeeps(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	const script = `
import http.client, os, ssl, sys, time
def connect(host):
    proxy = os.environ["HTTPS_PROXY"].split("//")[1].split(":")
    c = http.client.HTTPSConnection(proxy[0], int(proxy[1]), timeout=20, context=ssl.create_default_context())
    c.set_tunnel(host, 443)
    c.connect()
    return c
def get(c, path):
    c.sock is None and sys.exit("reconnect")
    c.request("GET", path)
    r = c.getresponse()
    r.read()
    return r.status
keep, cut = connect("` + harness.APIHost + `"), connect("` + harness.OtherHost + `")
keep.auto_open = cut.auto_open = 0
print("first", get(keep, "/v1/a"), get(cut, "/v1/a"), flush=True)
until = time.time() + 60
while time.time() < until:
    try:
        code = get(cut, "/v1/b")
        if code == 403: break
    except Exception as e:
        break
    time.sleep(0.02)
else:
    sys.exit("never cut")
print("then", get(keep, "/v1/c"), flush=True)
`
	done := make(chan api.Process, 1)
	go func() { done <- exec(t, who, api.ExecRequest{Command: "python3 - <<'EOF'\n" + script + "\nEOF"}) }()
	for stop := time.Now().Add(harness.Scale(20 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		if len(sys.World.Requests(harness.OtherHost)) > 0 && containsPath(sys.World.Requests(harness.OtherHost), "/v1/b") {
			break
		}
		if time.Now().After(stop) {
			t.Fatal("no request arrives")
		}
	}
	changePolicy(t, revoke)
	p := <-done
	if p.ExitCode == nil || *p.ExitCode != 0 || !strings.Contains(p.Stdout, "first 200 200") || !strings.Contains(p.Stdout, "then 200") {
		t.Errorf("%s\n%s\n%s", ended(p), p.Stdout, p.Stderr)
	}
	refused := exec(t, who, api.ExecRequest{Command: "curl -s -o /dev/null -w '%{http_connect}' https://" + harness.OtherHost + "/"})
	if refused.Stdout != "403" {
		t.Errorf("afterwards: %q", refused.Stdout)
	}
}

func containsPath(seen []harness.Seen, path string) bool {
	for _, s := range seen {
		if s.Path == path {
			return true
		}
	}
	return false
}

// TestWrongPolicyIsNotPutInForce: the old one stays, the fault is named by line,
// and is on record.
func TestWrongPolicyIsNotPutInForce(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	was, err := sys.WritePolicy(func(text string) string { return text + "tenats: {}\n" })
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Count(was, "\n")
	o := ctl(t, "", "policy", "reload")
	if _, err := sys.WritePolicy(func(string) string { return was }); err != nil {
		t.Fatal(err)
	}
	if o.Code == 0 || !strings.Contains(o.Stderr, fmt.Sprintf(":%d:1", lines+1)) || !strings.Contains(o.Stderr, "tenats") {
		t.Errorf("exit code %d: %s", o.Code, o.Stderr)
	}
	if out := sh(t, who, "curl -sS -m 20 https://"+harness.APIHost+"/v1/still"); !strings.Contains(out, `"ok":true`) {
		t.Errorf("the old policy: %s", out)
	}
}

// TestEgressProxyIsReplaced: it is killed, jails and daemon live on, and so do
// their names, certificates and secrets.
func TestEgressProxyIsReplaced(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	before := sh(t, who, "curl -sS -m 20 https://"+harness.APIHost+"/v1/before")
	proxy := func() *api.Egress {
		t.Helper()
		a, err := sys.Admin.Do(deadline(t), "GET", "/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		var s api.Status
		if err := json.Unmarshal(a.Body, &s); err != nil || s.Egress == nil {
			t.Fatalf("%v: %s", err, a.Body)
		}
		return s.Egress
	}
	was := proxy()
	if err := syscall.Kill(was.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	now := was
	for stop := time.Now().Add(harness.Scale(20 * time.Second)); !now.Running || now.Pid == was.Pid; now = proxy() {
		if time.Now().After(stop) {
			t.Fatalf("no new proxy: %+v", now)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if now.Restarts != was.Restarts+1 || now.Problem == "" {
		t.Errorf("%+v after %+v", now, was)
	}
	after := sh(t, who, "curl -sS -m 20 https://"+harness.APIHost+"/v1/before")
	if before != after || !strings.Contains(after, `"ok":true`) {
		t.Errorf("before %s, after %s", before, after)
	}
	r := fetchRun(t, who, `export default async () => (await fetch("https://`+harness.APIHost+`/v1/x")).status`, harness.APIHost)
	if string(r.Result) != "200" {
		t.Errorf("an isolate: %s %+v", r.Result, r.Error)
	}
	if o := ctl(t, "", "status"); !strings.Contains(o.Stdout, "replaced") {
		t.Errorf("status does not tell: %s", o.Stdout)
	}
}

// TestNamedService: a program that knows no proxy finds a service by its name
// and speaks to it directly; nothing reads along.
func TestNamedService(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	changePolicy(t, grant("id: db, host: db.world.test, scheme: tcp, ports: [443], ADDRESSES"))
	const script = `
import socket, ssl, sys
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
with socket.create_connection(("db.world.test", 443), 20) as raw, context.wrap_socket(raw, server_hostname="` + harness.OtherHost + `") as s:
    s.sendall(b"GET /v1/db HTTP/1.1\r\nHost: ` + harness.OtherHost + `\r\nConnection: close\r\n\r\n")
    text = b""
    while True:
        part = s.recv(4096)
        if not part: break
        text += part
    print(text.decode())
for port in (80, 5432):
    try:
        socket.create_connection(("db.world.test", port), 3).close(); print("open", port)
    except OSError: pass
`
	out := sh(t, who, "env -u HTTPS_PROXY -u HTTP_PROXY python3 - <<'EOF'\n"+script+"\nEOF")
	if !strings.Contains(out, `"path":"/v1/db"`) || strings.Contains(out, "open 5432") {
		t.Errorf("%s", out)
	}
	if p := exec(t, who, api.ExecRequest{Command: "getent hosts nodb.world.test"}); p.ExitCode == nil || *p.ExitCode == 0 {
		t.Error("a name that is not granted is found")
	}
}

// TestRuleLimitIsClear: what is too much is refused in words that name limit
// and rule.
func TestRuleLimitIsClear(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	changePolicy(t, grant("id: slowly, host: slow.world.test, methods: [GET], ADDRESSES, limits: {rate: 0.001, burst: 1}"))
	out := sh(t, who, "curl -s -k -m 20 -o /dev/null https://slow.world.test/; curl -s -k -m 20 -w '%{http_code}' https://slow.world.test/")
	text, ok := strings.CutSuffix(out, "429")
	if !ok || !strings.Contains(text, `"limit":"rate"`) || !strings.Contains(text, `"limit_rule":"slowly"`) {
		t.Errorf("%q", out)
	}
}
