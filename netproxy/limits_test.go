package netproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sandboxd/policy"
)

// A tunnel in which nothing moves is cut; one that carries something in one
// direction only is not.
func TestIdleTunnelIsCut(t *testing.T) {
	const idle = 400 * time.Millisecond
	w := newWorld(t, func(c *Config) { c.Limits.Tunnel = idle })
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		for range 12 {
			fmt.Fprint(rw, "tick\n")
			rw.(http.Flusher).Flush()
			select {
			case <-time.After(idle / 4):
			case <-r.Context().Done():
				return
			}
		}
	})
	j := w.jail("alice", u.rule(nil))
	at := fmt.Sprintf("api.test:%d", u.port)
	tc, err := j.tunnelTo(at, "api.test")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, body := talk(t, tc, "GET / HTTP/1.1\r\nHost: "+at+"\r\n\r\n"); len(body) != 60 {
		t.Fatalf("after %v: %q", time.Since(start), body)
	}
	_ = tc.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadAll(tc); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("an idle tunnel stays")
	}
	d := w.find(func(d Decision) bool { return d.Kind == "tunnel" && d.Phase == "finished" })
	if d.BytesIn < 60 || d.BytesOut == 0 {
		t.Errorf("record %+v", d)
	}
}

// What is refused before its target is known is on record as well.
func TestMalformedRequestsAreRecorded(t *testing.T) {
	w := newWorld(t, nil)
	j := w.jail("alice")
	for raw, reason := range map[string]string{
		"GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n":                            "misdirected",
		"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n":                                         "target_form",
		"GET http://a_b.test/ HTTP/1.1\r\nHost: a_b.test\r\n\r\n":                        "host_invalid",
		"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n":            "malformed_request",
		"CONNECT a.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n":                        "misdirected",
		"CONNECT user@a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n":                   "host_invalid",
		"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: gzip\r\n\r\n": "malformed_request",
	} {
		w.mu.Lock()
		w.decisions = nil
		w.mu.Unlock()
		talk(t, j.conn(), raw)
		d := w.find(func(d Decision) bool { return d.Reason == reason })
		if d.Allowed || d.Tenant != "alice" || d.Phase != "decided" {
			t.Errorf("%q: %+v", raw, d)
		}
	}
}

// Connections to DNS count like all others.
func TestDNSConnectionsAreLimited(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits.Connections = 3 })
	j := w.jail("alice")
	server := net.JoinHostPort(j.link.Gateway.String(), "53")
	for i := range 4 {
		c, err := j.dial(t.Context(), "tcp", server)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		m := new(dns.Msg)
		m.SetQuestion("evil.test.", dns.TypeA)
		conn := &dns.Conn{Conn: c}
		err = conn.WriteMsg(m)
		if err == nil {
			_, err = conn.ReadMsg()
		}
		if (err == nil) != (i < 3) {
			t.Errorf("connection %d: %v", i+1, err)
		}
	}
}

// Each limit of a rule says which it is, and of which rule; so does its record.
func TestRuleLimits(t *testing.T) {
	w := newWorld(t, nil)
	release := make(chan struct{})
	serve := func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case "/stream":
			for range 100 {
				if _, err := rw.Write(make([]byte, 1000)); err != nil {
					return
				}
				rw.(http.Flusher).Flush()
			}
			return
		case "/large":
			rw.Header().Set("Content-Length", "100000")
			_, _ = rw.Write(make([]byte, 100000))
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(rw, "hello")
	}
	limited := func(name string, l policy.EgressLimits) *upstream {
		u := w.plainUpstream(name, serve)
		w.granted = append(w.granted, u.rule(func(r *policy.Rule) { r.Scheme, r.Limits = "http", &l }))
		return u
	}
	perSecond := limited("rate.test", policy.EgressLimits{Rate: 0.001, Burst: 2})
	atOnce := limited("conns.test", policy.EgressLimits{Connections: 1})
	each := limited("bytes.test", policy.EgressLimits{BytesOut: 1000, BytesIn: 50_000})
	daily := limited("day.test", policy.EgressLimits{DayIn: 12})
	brief := limited("time.test", policy.EgressLimits{Time: policy.Duration(300 * time.Millisecond)})
	free := limited("free.test", policy.EgressLimits{})
	j := w.jail("alice", w.granted...)
	do := func(u *upstream, method, path string, body io.Reader) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, fmt.Sprintf("http://%s:%d%s", u.name, u.port, path), body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := j.client().Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return resp.StatusCode, "cut"
		}
		return resp.StatusCode, string(b)
	}
	refused := func(u *upstream, status int, limit string, got int, body string) {
		t.Helper()
		if got != status || !strings.Contains(body, `"limit":"`+limit+`"`) || !strings.Contains(body, `"limit_rule":"t/`+u.name+`"`) {
			t.Errorf("%s: %d %s", limit, got, body)
		}
		d := w.find(func(d Decision) bool { return d.Host == u.name && d.Reason == limit+"_limit" })
		if d.Rule != "t/"+u.name || d.Limit != "rule" {
			t.Errorf("record %+v", d)
		}
	}
	for range 2 {
		if code, body := do(perSecond, "GET", "/", nil); code != 200 {
			t.Fatal(code, body)
		}
	}
	code, body := do(perSecond, "GET", "/", nil)
	refused(perSecond, 429, "rate", code, body)

	held := make(chan struct{})
	go func() {
		defer close(held)
		do(atOnce, "GET", "/slow", nil)
	}()
	w.find(func(d Decision) bool { return d.Host == "conns.test" && d.Allowed })
	code, body = do(atOnce, "GET", "/", nil)
	refused(atOnce, 429, "connections", code, body)
	close(release)
	<-held

	code, body = do(each, "POST", "/", strings.NewReader(strings.Repeat("x", 1001)))
	refused(each, 413, "bytes_out", code, body)
	if code, body := do(each, "POST", "/", strings.NewReader(strings.Repeat("x", 1000))); code != 200 {
		t.Errorf("exactly at the limit: %d %s", code, body)
	}
	// A body whose length nobody told.
	code, body = do(each, "POST", "/", io.MultiReader(strings.NewReader(strings.Repeat("x", 1001))))
	refused(each, 413, "bytes_out", code, body)
	code, body = do(each, "GET", "/large", nil)
	refused(each, 403, "bytes_in", code, body)
	if code, body := do(each, "GET", "/stream", nil); code != 200 || body != "cut" {
		t.Errorf("a long stream: %d, %d bytes", code, len(body))
	}

	for i := range 3 {
		code, body = do(daily, "GET", "/", nil) // 5 bytes each: two, and the third is cut
		if i < 2 && code != 200 {
			t.Errorf("request %d: %d %s", i, code, body)
		}
	}
	code, body = do(daily, "GET", "/", nil)
	refused(daily, 429, "day_in", code, body)
	// A rule that is changed does not begin a new day.
	for i := range w.granted {
		if w.granted[i].Host == "day.test" {
			w.granted[i].Methods = []string{"GET"}
		}
	}
	w.rules("alice", w.granted...)
	code, body = do(daily, "GET", "/", nil)
	refused(daily, 429, "day_in", code, body)

	release = make(chan struct{})
	defer close(release)
	code, body = do(brief, "GET", "/slow", nil)
	refused(brief, 504, "time", code, body)
	if code, body := do(free, "GET", "/large", nil); code != 200 || len(body) != 100000 {
		t.Errorf("without limits: %d, %d bytes", code, len(body))
	}
}

// What a tenant may do under all its rules together.
func TestTenantLimits(t *testing.T) {
	w := newWorld(t, nil)
	u := w.plainUpstream("a.test", hello)
	v := w.plainUpstream("b.test", hello)
	http1 := func(r *policy.Rule) { r.Scheme = "http" }
	j := w.jail("alice", u.rule(http1), v.rule(http1))
	limits := policy.EgressLimits{Rate: 0.001, Burst: 3}
	if err := w.p.SetRules(t.Context(), "alice", []policy.Rule{u.rule(http1), v.rule(http1)}, limits); err != nil {
		t.Fatal(err)
	}
	var codes []int
	var last string
	for _, x := range []*upstream{u, v, u, v} {
		resp, err := j.client().Get(fmt.Sprintf("http://%s:%d/", x.name, x.port))
		last = readAll(t, resp, err)
		codes = append(codes, resp.StatusCode)
	}
	if fmt.Sprint(codes) != "[200 200 200 429]" || !strings.Contains(last, `"limit":"rate"`) || strings.Contains(last, "limit_rule") {
		t.Errorf("%v %s", codes, last)
	}
	if d := w.find(func(d Decision) bool { return d.Reason == "rate_limit" }); d.Limit != "tenant" || d.Host != "b.test" || d.Allowed {
		t.Errorf("record %+v", d)
	}
	limits = policy.EgressLimits{DayOut: 1 << 20, DayIn: 5}
	if err := w.p.SetRules(t.Context(), "alice", []policy.Rule{u.rule(http1), v.rule(http1)}, limits); err != nil {
		t.Fatal(err)
	}
	resp, err := j.client().Get(fmt.Sprintf("http://%s:%d/", u.name, u.port))
	if body := readAll(t, resp, err); !strings.Contains(body, `"limit":"day_in"`) {
		t.Errorf("%s", body)
	}
}
