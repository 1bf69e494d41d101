package netproxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

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

// tunnelTo opens CONNECT and TLS by hand.
func (j *jail) tunnelTo(authority, sni string) (*tls.Conn, error) {
	c := j.conn()
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: "CONNECT"})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		return nil, &connectRefused{resp.StatusCode, string(b)}
	}
	tc := tls.Client(c, &tls.Config{ServerName: sni, RootCAs: j.roots()})
	return tc, tc.Handshake()
}

func TestInsideATunnelEachRequestIsDecided(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	evil := w.upstream("evil.test", hello)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }), evil.rule(func(r *policy.Rule) { r.Methods = []string{"GET"} }))
	at := fmt.Sprintf("api.test:%d", u.port)
	for name, tc := range map[string]struct {
		raw  string
		want int
	}{
		"absolute target":      {"GET https://evil.test/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", 421},
		"absolute own target":  {"GET https://" + at + "/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", 421},
		"asterisk":             {"OPTIONS * HTTP/1.1\r\nHost: " + at + "\r\n\r\n", 421},
		"other Host":           {fmt.Sprintf("GET / HTTP/1.1\r\nHost: evil.test:%d\r\n\r\n", evil.port), 421},
		"Host without port":    {"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n", 421},
		"Host with other port": {"GET / HTTP/1.1\r\nHost: api.test:22\r\n\r\n", 421},
		"userinfo in Host":     {"GET / HTTP/1.1\r\nHost: evil.test@" + at + "\r\n\r\n", 421},
		"another CONNECT":      {"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", 421},
		"scheme-relative":      {"GET //evil.test/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", 400},
		"two Hosts":            {"GET / HTTP/1.1\r\nHost: " + at + "\r\nHost: " + at + "\r\n\r\n", 400},
		"smuggling":            {"POST / HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"bare line feeds":      {"GET / HTTP/1.1\nHost: " + at + "\n\n", 400},
		"websocket":            {"GET / HTTP/1.1\r\nHost: " + at + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 403},
		"the real one":         {"GET / HTTP/1.1\r\nHost: " + strings.ToUpper(at) + "\r\n\r\n", 200},
	} {
		tc0, err := j.tunnelTo(at, "api.test")
		if err != nil {
			t.Fatal(err)
		}
		resp, body := talk(t, tc0, tc.raw)
		if resp.StatusCode != tc.want {
			t.Errorf("%s: %d %s, want %d", name, resp.StatusCode, body, tc.want)
		}
		tc0.Close()
	}
	if n := len(u.requests()); n != 1 {
		t.Errorf("the server saw %d requests, want 1", n)
	}
	if n := len(evil.requests()); n != 0 {
		t.Errorf("the other server saw %d requests", n)
	}
}

func TestKeepAliveInsideTheTunnel(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %d", r.Method, len(b))
	})
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }))
	at := fmt.Sprintf("api.test:%d", u.port)
	tc, err := j.tunnelTo(at, "api.test")
	if err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(tc)
	for _, step := range []struct{ raw, want string }{
		{"GET / HTTP/1.1\r\nHost: " + at + "\r\n\r\n", "GET 0"},
		{"POST / HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 5\r\n\r\nhello", "POST 5"},
		{"POST / HTTP/1.1\r\nHost: " + at + "\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n3\r\nabc\r\n0\r\nAuthorization: x\r\n\r\n", "POST 3"},
		{"PUT / HTTP/1.1\r\nHost: " + at + "\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok", "PUT 2"},
		{"HEAD / HTTP/1.1\r\nHost: " + at + "\r\n\r\n", ""},
		{"GET / HTTP/1.1\r\nHost: " + at + "\r\n\r\nGET / HTTP/1.1\r\nHost: " + at + "\r\n\r\n", "GET 0"},
		{"", "GET 0"},
	} {
		if _, err := io.WriteString(tc, step.raw); err != nil {
			t.Fatal(err)
		}
		method, _, _ := strings.Cut(step.raw, " ")
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		for err == nil && resp.StatusCode == 100 {
			resp, err = http.ReadResponse(br, &http.Request{Method: method})
		}
		if got := readAll(t, resp, err); got != step.want || resp.StatusCode != 200 {
			t.Fatalf("%q: %d %q, want %q", step.raw, resp.StatusCode, got, step.want)
		}
	}
}

func TestServerNameMustAgree(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	in := w.upstream("in.test", hello)
	j := w.jail("alice", u.rule(nil), in.rule(func(r *policy.Rule) { r.Credential = bearer }))
	for _, up := range []*upstream{u, in} {
		at := fmt.Sprintf("%s:%d", up.name, up.port)
		for _, sni := range []string{"evil.test", "x." + up.name, "127.0.0.1"} {
			if tc, err := j.tunnelTo(at, sni); err == nil {
				tc.Close()
				t.Errorf("CONNECT %s with the server name %q went through", at, sni)
			}
		}
		if tc, err := j.tunnelTo(at, strings.ToUpper(up.name)); err != nil {
			t.Errorf("CONNECT %s: %v", at, err)
		} else {
			tc.Close()
		}
		w.find(func(d Decision) bool { return d.Host == up.name && d.Reason == "sni_mismatch" && !d.Allowed })
	}
	// Something that is not TLS at all.
	c := j.conn()
	fmt.Fprintf(c, "CONNECT api.test:%d HTTP/1.1\r\nHost: api.test:%d\r\n\r\nSSH-2.0-x\r\n", u.port, u.port)
	if b, _ := io.ReadAll(c); !strings.HasPrefix(string(b), "HTTP/1.1 200 ") || strings.Contains(string(b), "SSH") {
		t.Errorf("not TLS: %q", b)
	}
	w.find(func(d Decision) bool { return d.Reason == "not_tls" })
	if n := len(u.requests()) + len(in.requests()); n != 0 {
		t.Errorf("the servers saw %d requests", n)
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	w := newWorld(t, nil)
	other := w.upstream("other.test", hello)
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, other.url("/stolen?"+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")), http.StatusFound)
	})
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }), other.rule(func(r *policy.Rule) { r.Methods = []string{"GET"} }))
	resp, err := j.client().Get(u.url("/"))
	readAll(t, resp, err)
	if resp.StatusCode != 302 || len(other.requests()) != 0 {
		t.Errorf("status %d, and the other server saw %d requests", resp.StatusCode, len(other.requests()))
	}
	if loc := resp.Header.Get("Location"); hasSecret(loc) || !strings.Contains(loc, "***") {
		t.Errorf("Location %q", loc)
	}
	resp, err = j.client().Get(resp.Header.Get("Location"))
	readAll(t, resp, err)
	if auth := other.requests()[0].Header.Get("Authorization"); auth != "" {
		t.Error("the credential went to another host")
	}
}

func TestAddresses(t *testing.T) {
	w := newWorld(t, nil)
	rule := func(host string, edit func(*policy.Rule)) policy.Rule {
		r := policy.Rule{ID: "t/" + host, Host: host}
		if edit != nil {
			edit(&r)
		}
		return r
	}
	j := w.jail("alice",
		rule("localhost", nil), // in /etc/hosts: 127.0.0.1
		rule("169.254.169.254", func(r *policy.Rule) { r.Scheme = "http" }),
		rule("10.0.0.1", nil),
		rule("never.test", func(r *policy.Rule) { r.Resolve = []netip.Addr{netip.MustParseAddr("0.0.0.0")} }),
	)
	for _, target := range []string{"localhost:443", "10.0.0.1:443", "never.test:443"} {
		var refused *connectRefused
		if _, err := j.tunnelTo(target, "localhost"); !errors.As(err, &refused) || refused.status != 403 || !strings.Contains(refused.body, "ip_denied") {
			t.Errorf("%s: %v", target, err)
		}
	}
	_, body := talk(t, j.conn(), "GET http://169.254.169.254/latest/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n")
	if !strings.Contains(body, "ip_denied") {
		t.Errorf("metadata: %s", body)
	}
	for _, spelling := range []string{"2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]", "[::1%25lo]"} {
		resp, body := talk(t, j.conn(), "CONNECT "+spelling+":443 HTTP/1.1\r\nHost: "+spelling+":443\r\n\r\n")
		if resp.StatusCode != 400 {
			t.Errorf("%s: %d %s", spelling, resp.StatusCode, body)
		}
	}
	for _, literal := range []string{"127.0.0.1", "[::1]", "0.0.0.0", "[::]", "198.18.0.1"} {
		resp, body := talk(t, j.conn(), "CONNECT "+literal+":443 HTTP/1.1\r\nHost: "+literal+":443\r\n\r\n")
		if resp.StatusCode != 403 {
			t.Errorf("%s: %d %s", literal, resp.StatusCode, body)
		}
	}
}

func TestUpstreamTLSIsVerified(t *testing.T) {
	w := newWorld(t, nil)
	other := &world{TB: t}
	other.makeRoot()
	servers := map[string]*tls.Config{
		"unknown.test":   {Certificates: []tls.Certificate{other.cert("unknown.test", nil)}},
		"wrongname.test": {Certificates: []tls.Certificate{w.cert("good.test", nil)}},
		"expired.test": {Certificates: []tls.Certificate{w.cert("expired.test", func(c *x509.Certificate) {
			c.NotAfter = time.Now().Add(-time.Minute)
		})}},
		"old.test": {Certificates: []tls.Certificate{w.cert("old.test", nil)}, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10},
	}
	var rules []policy.Rule
	var ups []*upstream
	for name, cfg := range servers {
		u := w.upstreamTLS(name, hello, cfg)
		ups = append(ups, u)
		rules = append(rules, u.rule(func(r *policy.Rule) { r.Credential = bearer }))
	}
	j := w.jail("alice", rules...)
	for _, u := range ups {
		resp, err := j.client().Get(u.url("/"))
		if body := readAll(t, resp, err); resp.StatusCode != 502 || !strings.Contains(body, "upstream_tls") || len(u.requests()) != 0 {
			t.Errorf("%s: %d %s, %d requests", u.name, resp.StatusCode, body, len(u.requests()))
		}
	}
}

func TestUnrecordedIsRefused(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	open := w.upstream("open.test", hello)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }), open.rule(nil))
	w.mu.Lock()
	w.failAudit = true
	w.mu.Unlock()
	resp, err := j.client().Get(u.url("/"))
	if body := readAll(t, resp, err); resp.StatusCode != 503 || !strings.Contains(body, "audit_unavailable") {
		t.Errorf("request: %d %s", resp.StatusCode, body)
	}
	var refused *connectRefused
	if _, err := j.client().Get(open.url("/")); !errors.As(err, &refused) || refused.status != 503 {
		t.Errorf("tunnel: %v", err)
	}
	if _, err := lookup(j, "api.test", dns.TypeA); err == nil || !strings.Contains(err.Error(), "SERVFAIL") {
		t.Errorf("lookup: %v", err)
	}
	if n := len(u.requests()) + len(open.requests()); n != 0 {
		t.Errorf("the servers saw %d requests", n)
	}
}

func TestPlainHTTP(t *testing.T) {
	w := newWorld(t, nil)
	u := w.plainUpstream("mirror.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Connection", "X-Hop")
		rw.Header().Set("X-Hop", "1")
		fmt.Fprint(rw, r.URL.RequestURI(), r.Header.Get("Proxy-Authorization"))
	})
	tls := w.upstream("api.test", hello)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Scheme = "http" }), tls.rule(func(r *policy.Rule) { r.Credential = bearer }))
	at := fmt.Sprintf("mirror.test:%d", u.port)
	resp, body := talk(t, j.conn(), "GET http://"+at+"/@a%2fb?x HTTP/1.1\r\nHost: "+at+"\r\nProxy-Authorization: me\r\n\r\n")
	if resp.StatusCode != 200 || body != "/@a%2fb?x" || resp.Header.Get("X-Hop") != "" {
		t.Errorf("%d %q %v", resp.StatusCode, body, resp.Header)
	}
	for name, tc := range map[string]struct {
		raw  string
		want int
		why  string
	}{
		"cleartext to a credentialed host": {fmt.Sprintf("GET http://api.test:%d/ HTTP/1.1\r\nHost: api.test:%d\r\n\r\n", tls.port, tls.port), 403, "scheme_denied"},
		"https target":                     {"GET https://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n", 400, "target_form"},
		"path only":                        {"GET / HTTP/1.1\r\nHost: " + at + "\r\n\r\n", 400, "target_form"},
		"other Host":                       {"GET http://" + at + "/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 421, "misdirected"},
		"userinfo":                         {"GET http://evil@" + at + "/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", 400, "host_invalid"},
		"ftp":                              {"GET ftp://" + at + "/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", 400, "target_form"},
		"no rule":                          {"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403, "{host: evil.test, ports: [80], scheme: http}"},
		"HTTP/1.0":                         {"GET http://" + at + "/ HTTP/1.0\r\nHost: " + at + "\r\n\r\n", 505, "http_version"},
		"large head":                       {"GET http://" + at + "/ HTTP/1.1\r\nHost: " + at + "\r\nX: " + strings.Repeat("x", 70<<10) + "\r\n\r\n", 431, "header_too_large"},
	} {
		resp, body := talk(t, j.conn(), tc.raw)
		if resp.StatusCode != tc.want || !strings.Contains(body, tc.why) {
			t.Errorf("%s: %d %s, want %d %s", name, resp.StatusCode, body, tc.want, tc.why)
		}
	}
	if n := len(u.requests()); n != 1 {
		t.Errorf("the server saw %d requests, want 1", n)
	}
}
