package netproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"
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
