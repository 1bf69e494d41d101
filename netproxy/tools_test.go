package netproxy

import (
	"bytes"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/policy"
)

// Programs that people run in jails, by the proxy variables and without a
// flag.
func TestTools(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	open := w.upstream("open.test", hello)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }), open.rule(nil))
	for name, argv := range map[string][]string{
		"curl":   {"curl", "-sS", "--max-time", "20", "%s"},
		"python": {"python3", "-c", "import sys,urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1],timeout=20).read().decode())", "%s"},
	} {
		for _, server := range []*upstream{u, open} {
			args := append([]string{}, argv...)
			args[len(args)-1] = server.url("/")
			if out, err := j.run(j.proxyEnv(), args...); err != nil || out != "hello" {
				t.Errorf("%s %s: %v: %s", name, server.name, err, out)
			}
		}
		args := append([]string{}, argv...)
		args[len(args)-1] = "https://evil.test/"
		if out, err := j.run(j.proxyEnv(), args...); err == nil || !strings.Contains(out, "403") {
			t.Errorf("%s, not granted: %v: %s", name, err, out)
		}
	}
	out, err := j.run(nil, "openssl", "s_client", "-proxy", j.proxyAddr(), "-connect", strings.TrimPrefix(u.url(""), "https://"), "-servername", "evil.test")
	if err == nil || !strings.Contains(out, "alert") {
		t.Errorf("openssl with another server name: %v: %s", err, out)
	}
}

// A clone over HTTPS with a credential that the clone's side never has.
func TestGitClone(t *testing.T) {
	w := newWorld(t, nil)
	dir := t.TempDir()
	repo := filepath.Join(dir, "project.git")
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	work := filepath.Join(dir, "work")
	git("init", "-q", "-b", "main", work)
	big := strings.Repeat("line of a file that does not compress to nothing\n", 20_000)
	if err := os.WriteFile(filepath.Join(work, "file"), []byte(big), 0o644); err != nil {
		t.Fatal(err)
	}
	git("-C", work, "add", "file")
	git("-C", work, "commit", "-q", "-m", "first")
	git("clone", "-q", "--bare", work, repo)
	git("-C", repo, "config", "http.receivepack", "true")
	backend, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	u := w.upstream("git.test", func(rw http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "x-token" || password != secret {
			rw.Header().Set("WWW-Authenticate", "Basic")
			http.Error(rw, "who?", http.StatusUnauthorized)
			return
		}
		if r.ContentLength < 0 { // CGI knows no chunks
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
		}
		(&cgi.Handler{
			Path: strings.TrimSpace(string(backend)) + "/git-http-backend",
			Env:  []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
		}).ServeHTTP(rw, r)
	})
	j := w.jail("bob", u.rule(func(r *policy.Rule) {
		r.Credential = &policy.Injection{Name: "api-token", As: "basic", Username: "x-token"}
	}))
	to := filepath.Join(t.TempDir(), "clone")
	if out, err := j.run(j.proxyEnv(), "git", "clone", "-q", u.url("/project.git"), to); err != nil {
		t.Fatalf("clone: %v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(to, "file")); err != nil || string(got) != big {
		t.Fatalf("the clone has %d bytes, %v", len(got), err)
	}
	// And back: a push with a chunked, large body.
	random := make([]byte, 3<<20)
	for i, x := 0, uint32(1); i < len(random); i++ {
		x = x*1664525 + 1013904223
		random[i] = byte(x >> 24)
	}
	if err := os.WriteFile(filepath.Join(to, "random"), random, 0o644); err != nil {
		t.Fatal(err)
	}
	git("-C", to, "add", "random")
	git("-C", to, "commit", "-q", "-m", "second")
	if out, err := j.run(j.proxyEnv(), "git", "-C", to, "push", "-q", "origin", "main"); err != nil {
		t.Fatalf("push: %v: %s", err, out)
	}
	if out, err := j.run(nil, "grep", "-r", secret, to); err == nil {
		t.Errorf("the clone holds the secret: %s", out)
	}
}
