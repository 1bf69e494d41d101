package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/daemon/client"
	"sandboxd/tests/internal/harness"
)

// callsAPI is a client of the API socket.
func callsAPI(t *testing.T) *client.Client {
	c := client.New(sys.API.Socket)
	t.Cleanup(c.Close)
	return c
}

// TestClientChangesFiles: what daemon/client offers for files does what it says.
func TestClientChangesFiles(t *testing.T) {
	who, ctx, c := tenant(t, harness.AgentPrefix), deadline(t), callsAPI(t)
	read := func(path string) string {
		t.Helper()
		r, err := c.ReadFile(ctx, who, path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Mkdir(ctx, who, "/workspace/a/b", 0o750))
	must(c.WriteFile(ctx, who, "/workspace/a/b/log", strings.NewReader("one\n"), 0o640))
	must(c.AppendFile(ctx, who, "/workspace/a/b/log", strings.NewReader("two\n")))
	if got := read("/workspace/a/b/log"); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	must(c.ChmodFile(ctx, who, "/workspace/a/b/log", 0o600))
	must(c.RenameFile(ctx, who, "/workspace/a/b/log", "/workspace/moved", false))
	if got := sh(t, who, "stat -c '%a %U' a/b moved; ls a/b"); got != "750 user\n600 user\n" {
		t.Errorf("%q", got)
	}
	must(c.WriteFile(ctx, who, "/workspace/other", strings.NewReader("other"), 0o644))
	if err := c.RenameFile(ctx, who, "/workspace/other", "/workspace/moved", false); err == nil {
		t.Error("a file was overwritten unasked")
	}
	must(c.RenameFile(ctx, who, "/workspace/other", "/workspace/moved", true))
	if got := read("/workspace/moved"); got != "other" {
		t.Errorf("%q", got)
	}
	if err := c.AppendFile(ctx, who, "/workspace/a", strings.NewReader("x")); err == nil {
		t.Error("a folder was appended to")
	}
	for _, path := range []string{"/etc/passwd", "/workspace/../etc/x"} {
		if err := c.ChmodFile(ctx, who, path, 0o777); err == nil {
			t.Errorf("%s has another mode", path)
		}
	}
}

// TestClientTouchesJails: touching puts the time off at which a jail is idle;
// showing it does not.
func TestClientTouchesJails(t *testing.T) {
	who, ctx, c := tenant(t, harness.AgentPrefix), deadline(t), callsAPI(t)
	if _, err := c.TouchJail(ctx, who); err == nil {
		t.Error("a jail that does not exist was touched")
	}
	sh(t, who, "true")
	before, err := c.Jail(ctx, who)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Jail(ctx, who)
	if err != nil || !again.IdleAt.Equal(before.IdleAt) {
		t.Errorf("shown, it is idle at %s, not %s; %v", again.IdleAt, before.IdleAt, err)
	}
	touched, err := c.TouchJail(ctx, who)
	if err != nil {
		t.Fatal(err)
	}
	after, err := c.Jail(ctx, who)
	if err != nil || !after.IdleAt.After(before.IdleAt) || touched.Tenant != who {
		t.Errorf("touched, it is idle at %s, before at %s; %v", after.IdleAt, before.IdleAt, err)
	}
}

// TestClientClones from a repository in the jail; that addresses are checked is
// git's own test.
func TestClientClones(t *testing.T) {
	if _, err := osexec.LookPath("git"); err != nil {
		t.Fatal("git is part of the host's system: ", err)
	}
	who, ctx, c := tenant(t, harness.AgentPrefix), deadline(t), callsAPI(t)
	p, err := c.GitClone(ctx, who, &api.GitClone{URL: "https://" + harness.DeniedHost + "/x.git", Depth: 1, Directory: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if p.ExitCode == nil || *p.ExitCode == 0 || !strings.Contains(p.Stderr, "fatal:") {
		t.Errorf("%s: %s", ended(*p), p.Stderr)
	}
	found := false
	for _, d := range p.Denials {
		found = found || d.Kind == "network" && strings.HasPrefix(d.What, harness.DeniedHost)
	}
	if !found {
		t.Errorf("the receipt does not say where it might not connect: %+v", p.Denials)
	}
	for _, bad := range []api.GitClone{{URL: "file:///workspace"}, {URL: "ext::sh -c id"}, {URL: "--upload-pack=id"}, {URL: "https://user:secret@example.com/x"}} {
		if _, err := c.GitClone(ctx, who, &bad); err == nil {
			t.Errorf("cloned from %q", bad.URL)
		}
	}
}

// TestCtlFollowsProcesses: ps, logs -f, wait and kill of a command in the
// background, whose log is longer than what is kept of it.
func TestCtlFollowsProcesses(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	const script = "seq 1 400000; echo ready; while ! test -e stop; do sleep 0.05; done; echo bye; exec sleep 1000"
	if o := ctl(t, "", "exec", "-d", "--id", "long", who, "--", "sh", "-c", script); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	if o := ctl(t, "", "wait", "--log", "^ready$", who, "long"); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	o := ctl(t, "", "logs", who, "long")
	if o.Code != 0 || strings.HasPrefix(o.Stdout, "1\n") || !strings.HasSuffix(o.Stdout, "400000\nready\n") {
		t.Errorf("exit code %d, %d bytes: %.40q … %q", o.Code, len(o.Stdout), o.Stdout, o.Stdout[max(0, len(o.Stdout)-40):])
	}
	wantError(t, do(t, "GET", jailPath(who)+"/processes/long/events?after=0", nil), http.StatusGone, api.CodeGone, "")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	follow := sys.CtlCommand(deadline(t), "logs", "-f", who, "long")
	follow.Stdout = out
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	sh(t, who, "touch stop")
	eventually(t, "what comes later is followed", func() bool {
		b, err := os.ReadFile(out.Name())
		return err == nil && strings.HasSuffix(string(b), "ready\nbye\n")
	})
	if o := ctl(t, "", "ps", who); !strings.Contains(o.Stdout, "long") || !strings.Contains(o.Stdout, "running") {
		t.Errorf("%+v", o)
	}
	if o := ctl(t, "", "kill", who, "long"); o.Code != 0 {
		t.Errorf("%+v", o)
	}
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f of a command that was killed: %v", err)
	}
	if o := ctl(t, "", "wait", "--exit", who, "long"); o.Code != 0 {
		t.Errorf("%+v", o)
	}
}

// TestExecUser: who a command runs as, and who not.
func TestExecUser(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	for user, want := range map[string]string{"": "1000", "user": "1000", "nobody": "65534", "4242": "4242"} {
		if p := exec(t, who, api.ExecRequest{Argv: []string{"id", "-u"}, User: user}); p.Stdout != want+"\n" {
			t.Errorf("%q: %q", user, p.Stdout)
		}
	}
	for user, code := range map[string]string{"0": api.CodeDenied, "root": api.CodeDenied, "65536": api.CodeInvalidRequest, "-1": api.CodeInvalidRequest, "1000:0": api.CodeInvalidRequest} {
		status := http.StatusBadRequest
		if code == api.CodeDenied {
			status = http.StatusForbidden
		}
		wantError(t, do(t, "POST", jailPath(who)+"/exec", api.ExecRequest{Argv: []string{"id"}, User: user}), status, code, "user")
	}
	if o := ctl(t, "", "exec", "-u", "nobody", who, "--", "id", "-un"); o.Stdout != "nobody\n" {
		t.Errorf("%+v", o)
	}
}

// TestReceipts: what was refused and what changed, for people and in JSON.
func TestReceipts(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	script := fmt.Sprintf("unshare -U true; curl -sS -m 20 https://%s/ ; echo x > new", harness.DeniedHost)
	p := exec(t, who, api.ExecRequest{Command: script, Receipt: &api.ReceiptRequest{Files: true}})
	kinds := map[string]bool{}
	for _, d := range p.Denials {
		kinds[d.Kind+" "+strings.TrimSuffix(d.What, ":443")] = true
	}
	if !kinds["syscall unshare"] || !kinds["network "+harness.DeniedHost] {
		t.Errorf("%+v", p.Denials)
	}
	if p.Changes == nil || len(p.Changes.Changes) != 1 || p.Changes.Changes[0].Path != "/workspace/new" || p.Changes.Changes[0].Kind != "added" {
		t.Errorf("%+v", p.Changes)
	}
	o := ctl(t, "", "exec", "--changes", who, "--", "sh", "-c", script)
	for _, text := range []string{"denied syscall: unshare", "denied network: " + harness.DeniedHost, "hint: an operator can add a rule", "modified file /workspace/new"} {
		if !strings.Contains(o.Stderr, text) {
			t.Errorf("sandboxctl does not say %q:\n%s", text, o.Stderr)
		}
	}
}
