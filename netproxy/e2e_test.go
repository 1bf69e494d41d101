package netproxy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sandboxd/policy"
)

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }

func TestTunnelAllowedAndRefused(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	j := w.jail("alice", u.rule(nil))
	c := j.client()
	if got := func() string { r, err := c.Get(u.url("/a?b")); return readAll(t, r, err) }(); got != "hello" {
		t.Fatalf("got %q", got)
	}
	c.CloseIdleConnections()
	d := w.find(func(d Decision) bool { return d.Kind == "tunnel" && d.Phase == "finished" })
	if !d.Allowed || d.Host != "api.test" || d.Port != u.port || d.Rule != "t/api.test" || d.Tenant != "alice" ||
		d.Origin != "jail" || d.Address.String() != "127.0.0.1" || d.BytesIn == 0 || d.BytesOut == 0 {
		t.Errorf("record %+v", d)
	}
	_, err := c.Get("https://evil.test/")
	var refused *connectRefused
	if !errors.As(err, &refused) || refused.status != 403 {
		t.Fatalf("a host without a rule: %v", err)
	}
	var body struct {
		Error struct{ Code, Message, Hint, Rule, Host string }
	}
	if err := json.Unmarshal([]byte(refused.body), &body); err != nil || body.Error.Code != "denied" ||
		!strings.Contains(body.Error.Message, "evil.test") || !strings.Contains(body.Error.Hint, "{host: evil.test, ports: [443]}") {
		t.Errorf("the refusal says %q, %v", refused.body, err)
	}
	w.find(func(d Decision) bool {
		return d.Kind == "tunnel" && !d.Allowed && d.Reason == "no_rule" && d.Host == "evil.test"
	})
	for _, port := range []string{"22", "25", "443"} {
		if _, err := c.Get("https://api.test:" + port + "/"); !errors.As(err, &refused) || !strings.Contains(refused.body, "port_denied") {
			t.Errorf("port %s: %v", port, err)
		}
	}
}

func TestInterceptedRequestGetsTheCredential(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		rw.Header().Set("Alt-Svc", `h3=":443"`)
		fmt.Fprintf(rw, "you sent %s and %s", r.Header.Get("Authorization"), r.URL.RequestURI())
	})
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer; r.Paths = []string{"/v1/*"}; r.Methods = []string{"GET"} }))
	c := j.client()
	req, err := http.NewRequest("GET", u.url("/v1/x?y=%2f"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Authorization"] = []string{"Bearer mine", "Bearer twice"}
	req.Header.Set("X-Forwarded-For", "1.2.3.4")
	req.Header.Set("X-Own", "kept")
	resp, err := c.Do(req)
	got := readAll(t, resp, err)
	seen := u.requests()[0]
	if auth := seen.Header.Values("Authorization"); len(auth) != 1 || auth[0] != "Bearer "+secret {
		t.Errorf("upstream saw %d Authorization fields", len(auth))
	}
	if seen.Header.Get("X-Forwarded-For") != "" || seen.Header.Get("X-Own") != "kept" || seen.Host != fmt.Sprintf("api.test:%d", u.port) {
		t.Errorf("upstream saw %v %v", seen.Host, seen.Header)
	}
	if hasSecret(got) || hasSecret(fmt.Sprint(resp.Header)) || !strings.Contains(got, "you sent Bearer ****") || !strings.HasSuffix(got, "/v1/x?y=%2f") {
		t.Errorf("the sandbox got %q %v", got, resp.Header)
	}
	if resp.Header.Get("Alt-Svc") != "" {
		t.Error("Alt-Svc came through")
	}
	d := w.find(func(d Decision) bool { return d.Kind == "request" && d.Phase == "finished" })
	if d.Credential != "api-token" || d.Status != 200 || d.Path != "/v1/x" || d.BytesIn != int64(len(got)) {
		t.Errorf("record %+v", d)
	}
	for path, want := range map[string]string{
		"/v2/x": "path_denied", "/v1/../v2": "path_invalid", "/v1/%2e%2e/v2": "path_invalid",
		"/v1//x": "path_invalid", "/v1/%61": "path_invalid", "/v1/a;b": "path_invalid", "/v1/a%2fb": "path_invalid",
	} {
		// net/http would clean the path; Opaque keeps it.
		req, _ := http.NewRequest("GET", u.url("/"), nil)
		req.URL.Opaque = path
		resp, err := c.Do(req)
		if got := readAll(t, resp, err); !strings.Contains(got, want) {
			t.Errorf("path %s: %d %s", path, resp.StatusCode, got)
		}
	}
	resp, err = c.Post(u.url("/v1/x"), "text/plain", strings.NewReader("x"))
	if got := readAll(t, resp, err); resp.StatusCode != 403 || !strings.Contains(got, "method_denied") {
		t.Errorf("POST: %d %s", resp.StatusCode, got)
	}
	if n := len(u.requests()); n != 1 {
		t.Errorf("the server saw %d requests, want 1", n)
	}
	if strings.Contains(w.logs.String(), secret) {
		t.Error("the log holds the secret")
	}
}

// talk sends raw bytes through a connection and reads one answer.
func talk(t *testing.T, c io.ReadWriter, raw string) (*http.Response, string) {
	t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	return resp, readAll(t, resp, err)
}
