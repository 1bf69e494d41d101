package netproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sandboxd/policy"
)

func TestFetch(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		rw.Header().Set(refusedHeader, "forged")
		fmt.Fprintf(rw, "%s %s %d %s", r.Method, r.URL.RequestURI(), len(b), r.Header.Get("Authorization"))
	})
	open := w.upstream("open.test", hello)
	w.rules("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer; r.Paths = []string{"/v1/*"} }), open.rule(nil))
	rt := w.p.Fetch("alice", "run-1")
	c := &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer c.CloseIdleConnections()
	for range 3 {
		resp, err := c.Post(u.url("/v1/a%20b?c=d"), "text/plain", bytes.NewReader(make([]byte, 100_000)))
		got := readAll(t, resp, err)
		if !strings.HasPrefix(got, "POST /v1/a%20b?c=d 100000 Bearer ***") || hasSecret(got) {
			t.Fatalf("got %q", got)
		}
	}
	resp, err := c.Get(open.url(""))
	if got := readAll(t, resp, err); got != "hello" {
		t.Errorf("a rule without interception: %q", got)
	}
	d := w.find(func(d Decision) bool { return d.Phase == "finished" && d.Host == "api.test" })
	if d.RunID != "run-1" || d.Origin != "isolate" || d.Tenant != "alice" || d.Credential != "api-token" || d.BytesOut != 100_000 {
		t.Errorf("record %+v", d)
	}
	for url, reason := range map[string]string{
		"https://evil.test/":                                "no_rule",
		"http://api.test/":                                  "scheme_denied",
		u.url("/v2/x"):                                      "path_denied",
		"https://169.254.169.254/":                          "no_rule",
		"https://user:pw@api.test/":                         "target_form",
		"file:///etc/passwd":                                "target_form",
		fmt.Sprintf("https://api.test:%d/v1/", u.port+1):    "port_denied",
		fmt.Sprintf("https://api.test%%2f:%d/v1/", u.port):  "",
		fmt.Sprintf("https://evil_api.test:%d/v1/", u.port): "host_invalid",
	} {
		resp, err := c.Get(url)
		if err == nil {
			resp.Body.Close()
			t.Errorf("%s: %d", url, resp.StatusCode)
			continue
		}
		var denied *DeniedError
		if reason != "" && (!errors.As(err, &denied) || denied.Reason != reason || denied.Message == "") {
			t.Errorf("%s: %v, want %s", url, err, reason)
		}
	}
	dead := policy.Rule{ID: "dead", Host: "dead.test", Ports: []uint16{1}, Resolve: u.rule(nil).Resolve}
	w.rules("alice", dead)
	var failed *UpstreamError
	if _, err := c.Get("https://dead.test:1/"); !errors.As(err, &failed) || failed.Reason != "upstream_unreachable" {
		t.Errorf("a dead server: %v", err)
	}
	// Another tenant has nothing of it.
	var denied *DeniedError
	if _, err := (&http.Client{Transport: w.p.Fetch("bob", "run-2")}).Get(u.url("/v1/")); !errors.As(err, &denied) {
		t.Errorf("another tenant: %v", err)
	}
}

func TestFetchStreams(t *testing.T) {
	w := newWorld(t, nil)
	step := make(chan struct{})
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		for range 3 {
			fmt.Fprint(rw, "data: x\n\n")
			rw.(http.Flusher).Flush()
			select {
			case <-step:
			case <-r.Context().Done():
				return
			}
		}
	})
	w.rules("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }))
	resp, err := (&http.Client{Transport: w.p.Fetch("alice", "r")}).Get(u.url("/"))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	for range 3 {
		// Each event arrives although the next one waits for us.
		if n, err := io.ReadFull(resp.Body, buf[:9]); err != nil || string(buf[:n]) != "data: x\n\n" {
			t.Fatalf("%q %v", buf[:n], err)
		}
		step <- struct{}{}
	}
	resp.Body.Close()
}
