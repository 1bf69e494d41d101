package netproxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sandboxd/policy"
)

// lookup asks the jail's own name server.
func lookup(j *jail, name string, qtype uint16) ([]dns.RR, error) {
	return ask(j, "udp", j.link.Resolvers[0], name, qtype)
}

func ask(j *jail, network, server, name string, qtype uint16) ([]dns.RR, error) {
	c, err := j.dial(j.Context(), network, net.JoinHostPort(server, "53"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	client := &dns.Client{Net: network, Timeout: 5 * time.Second}
	r, _, err := client.ExchangeWithConn(m, &dns.Conn{Conn: c})
	if err != nil {
		return nil, err
	}
	if r.Rcode != dns.RcodeSuccess {
		return nil, errors.New(dns.RcodeToString[r.Rcode])
	}
	return r.Answer, nil
}

func TestDNS(t *testing.T) {
	w := newWorld(t, nil)
	j := w.jail("alice", policy.Rule{ID: "1", Host: "api.test"}, policy.Rule{ID: "2", Host: "*.wild.test"})
	first, err := lookup(j, "api.test", dns.TypeA)
	if err != nil || len(first) != 1 {
		t.Fatalf("%v, %v", first, err)
	}
	addr, ok := netip.AddrFromSlice(first[0].(*dns.A).A)
	if !ok || !DefaultSynthetic.Contains(addr.Unmap()) {
		t.Errorf("address %v", first[0])
	}
	other, err := lookup(j, "a.b.wild.test", dns.TypeA)
	if err != nil || len(other) != 1 || other[0].(*dns.A).A.Equal(first[0].(*dns.A).A) {
		t.Errorf("a second name: %v, %v", other, err)
	}
	if again, err := lookup(j, "API.test.", dns.TypeA); err != nil || !again[0].(*dns.A).A.Equal(first[0].(*dns.A).A) {
		t.Errorf("asked again: %v, %v", again, err)
	}
	for _, server := range []string{j.link.Resolvers[0], "8.8.8.8", "169.254.169.253"} {
		for _, network := range []string{"udp", "tcp"} {
			if rr, err := ask(j, network, server, "api.test", dns.TypeA); err != nil || len(rr) != 1 {
				t.Errorf("%s to %s: %v, %v", network, server, rr, err)
			}
			if rr, err := ask(j, network, server, "evil.test", dns.TypeA); err == nil || err.Error() != "NXDOMAIN" {
				t.Errorf("%s to %s, not granted: %v, %v", network, server, rr, err)
			}
		}
	}
	for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeHTTPS, dns.TypeTXT, dns.TypeMX} {
		if rr, err := lookup(j, "api.test", qtype); err != nil || len(rr) != 0 {
			t.Errorf("type %d: %v, %v", qtype, rr, err)
		}
	}
	for _, name := range []string{"wild.test", "xwild.test", "localhost", "secret-data.evil.test", "1.2.3.4", "_x.api.test", "4.3.2.1.in-addr.arpa"} {
		if _, err := lookup(j, name, dns.TypeA); err == nil || err.Error() != "NXDOMAIN" {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.find(func(d Decision) bool {
		return d.Kind == "dns" && d.Allowed && d.Host == "api.test" && d.Address == addr.Unmap()
	})
	w.find(func(d Decision) bool {
		return d.Kind == "dns" && !d.Allowed && d.Host == "evil.test" && d.Reason == "no_rule"
	})
}

// capturedClient dials what DNS says, without a proxy.
func (j *jail) capturedDial(host string, port string) (net.Conn, error) {
	rr, err := lookup(j, host, dns.TypeA)
	if err != nil {
		return nil, err
	}
	return j.dial(j.Context(), "tcp", net.JoinHostPort(rr[0].(*dns.A).A.String(), port))
}

func TestCapturedTLS(t *testing.T) {
	w := newWorld(t, nil)
	// Port 443 is what is captured, so a real server must be there: on a
	// loopback address that nothing else uses.
	u := w.newUpstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, "hello ", r.Header.Get("Authorization") != "")
	})
	l, err := net.Listen("tcp", "127.200.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	u.srv.Listener.Close()
	u.srv.Listener = l
	u.srv.TLS = &tls.Config{Certificates: []tls.Certificate{w.cert("api.test", nil), w.cert("open.test", nil)}}
	u.srv.StartTLS()
	t.Cleanup(u.srv.Close)
	at := []netip.Addr{netip.MustParseAddr("127.200.0.1")}
	j := w.jail("alice",
		policy.Rule{ID: "1", Host: "api.test", Resolve: at, Credential: bearer},
		policy.Rule{ID: "2", Host: "open.test", Resolve: at})
	for host, want := range map[string]string{"api.test": "hello true", "open.test": "hello false"} {
		c, err := j.capturedDial(host, "443")
		if err != nil {
			t.Fatal(err)
		}
		tc := tls.Client(c, &tls.Config{ServerName: host, RootCAs: j.roots()})
		if _, body := talk(t, tc, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); body != want {
			t.Errorf("%s: %q", host, body)
		}
		tc.Close()
	}
	// The address plays no part, the name does.
	for _, tc := range []struct{ addr, sni string }{
		{"1.1.1.1", "evil.test"}, {"127.200.0.1", "evil.test"}, {"169.254.169.254", ""}, {"198.18.0.1", "x.api.test"},
	} {
		c, err := j.dial(t.Context(), "tcp", tc.addr+":443")
		if err != nil {
			continue // 127.0.0.0/8 never leaves the jail
		}
		cfg := &tls.Config{ServerName: tc.sni, RootCAs: j.roots()}
		if tc.sni == "" {
			cfg.ServerName = "10.1.1.1" // no name is sent for an address
		}
		var alert tls.AlertError
		if err := tls.Client(c, cfg).Handshake(); !errors.As(err, &alert) && (err == nil || !strings.Contains(err.Error(), "remote error")) {
			t.Errorf("%s with %q: %v", tc.addr, tc.sni, err)
		}
		c.Close()
	}
	w.find(func(d Decision) bool {
		return d.Kind == "tunnel" && !d.Allowed && d.Host == "evil.test" && d.Reason == "no_rule"
	})
	if n := len(u.requests()); n != 2 {
		t.Errorf("the server saw %d requests, want 2", n)
	}
}

func TestCapturedHTTP(t *testing.T) {
	w := newWorld(t, nil)
	u := w.newUpstream("mirror.test", hello)
	l, err := net.Listen("tcp", "127.200.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	u.srv.Listener.Close()
	u.srv.Listener = l
	u.srv.Start()
	t.Cleanup(u.srv.Close)
	j := w.jail("alice", policy.Rule{ID: "1", Host: "mirror.test", Scheme: "http", Resolve: []netip.Addr{netip.MustParseAddr("127.200.0.2")}})
	for raw, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: mirror.test\r\n\r\n":                       200,
		"GET / HTTP/1.1\r\nHost: mirror.test:80\r\n\r\n":                    200,
		"GET / HTTP/1.1\r\nHost: mirror.test:81\r\n\r\n":                    400,
		"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n":                         403,
		"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n":                   403,
		"GET http://mirror.test/ HTTP/1.1\r\nHost: mirror.test\r\n\r\n":     421,
		"CONNECT mirror.test:443 HTTP/1.1\r\nHost: mirror.test:443\r\n\r\n": 421,
	} {
		c, err := j.capturedDial("mirror.test", "80")
		if err != nil {
			t.Fatal(err)
		}
		if resp, body := talk(t, c, raw); resp.StatusCode != want {
			t.Errorf("%q: %d %s, want %d", raw, resp.StatusCode, body, want)
		}
		c.Close()
	}
}
