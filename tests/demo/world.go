package main

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"

	"sandboxd/tests/internal/outside"
)

const (
	apiHost = "api.demo.test"
	gitHost = "git.demo.test"
)

// The addresses are of the range set aside for benchmarks (RFC 2544), so they
// meet no real host, and sandboxd refuses them unless a rule names them: just as
// it does with an operator's internal network.
var place = outside.Config{
	Link:  "sbxdemo0",
	Host:  netip.MustParseAddr("198.18.77.1"),
	Addr:  netip.MustParseAddr("198.18.77.2"),
	Names: []string{apiHost, gitHost},
}

// A world is the outside that sandboxes reach through the proxy: an API and a
// git server.
type world struct {
	*outside.Server
	apiToken string // what the API wants; no sandbox ever sees it
	gitToken string

	authorised atomic.Int64 // API requests that carried the token
	refused    atomic.Int64
}

func newWorld(dir string) (*world, error) {
	w := &world{apiToken: "demo_api_" + rand.Text(), gitToken: "demo_git_" + rand.Text()}
	repo, err := makeRepository(dir)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc(apiHost+"/v1/rates", w.serveRates)
	mux.Handle(gitHost+"/", w.gitHandler(repo))
	at := place
	at.Handler = mux
	w.Server, err = outside.Start(at)
	return w, err
}

// serveRates is the API: it answers only to the bearer token.
func (w *world) serveRates(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+w.apiToken {
		w.refused.Add(1)
		http.Error(rw, `{"error":"token wanted"}`, http.StatusUnauthorized)
		return
	}
	w.authorised.Add(1)
	rw.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(rw, `{"base":%q,"rates":{"USD":1.25,"CHF":0.95}}`, r.URL.Query().Get("base"))
}

// gitHandler is git's own HTTP server behind basic authentication.
func (w *world) gitHandler(repo string) http.Handler {
	gitPath, err := exec.LookPath("git")
	if err != nil {
		gitPath = "/usr/bin/git"
	}
	backend := &cgi.Handler{
		Path: gitPath, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(repo), "GIT_HTTP_EXPORT_ALL=1"},
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != w.gitToken {
			rw.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(rw, "credentials wanted", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(rw, r)
	})
}

// makeRepository commits the demo's web project to a bare repository.
func makeRepository(dir string) (string, error) {
	tree, bare := filepath.Join(dir, "tiny-site"), filepath.Join(dir, "git", "tiny-site.git")
	if err := os.CopyFS(tree, projectFiles()); err != nil {
		return "", fmt.Errorf("write the project: %w", err)
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", tree},
		{"-C", tree, "add", "."},
		{"-C", tree, "-c", "user.name=demo", "-c", "user.email=demo@demo.test", "commit", "-q", "-m", "A tiny site"},
		{"clone", "-q", "--bare", tree, bare},
	} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return bare, nil
}
