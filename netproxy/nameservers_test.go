package netproxy

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"

	"sandboxd/netproxy/internal/control"
	"sandboxd/policy"
)

func TestNameServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	for content, want := range map[string]string{
		"": "[127.0.0.1:53]",
		"# nameserver 1.1.1.1\nsearch a b\nnameserver 9.9.9.9\n nameserver\t2620:fe::fe \noptions edns0\n": "[9.9.9.9:53 [2620:fe::fe]:53]",
		"nameserver x\nnameserver fe80::1%eth0\n":                                                          "[[fe80::1%eth0]:53]",
		"nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4\n":                 "[1.1.1.1:53 1.1.1.2:53 1.1.1.3:53]",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(nameServers(path)); got != want {
			t.Errorf("%q: %s, want %s", content, got, want)
		}
	}
	if got := fmt.Sprint(nameServers("/nonexistent")); got != "[127.0.0.1:53]" {
		t.Errorf("no file: %s", got)
	}
}

// fakeDNS answers every A question with the address.
func fakeDNS(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = append(m.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(addr),
			})
		}
		_ = w.WriteMsg(m)
	})}
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	ended := make(chan error, 1)
	go func() { ended <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		_ = s.Shutdown()
		<-ended
	})
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// What a name server answers is vetted, and a change of servers takes effect
// without a restart.
func TestAnswersAreVetted(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	rule := u.rule(func(r *policy.Rule) { r.Resolve = nil })
	use := func(addr string) {
		t.Helper()
		servers := control.Servers{Servers: []netip.AddrPort{fakeDNS(t, addr)}}
		if err := w.p.call(t.Context(), control.MethodServers, servers, nil); err != nil {
			t.Fatal(err)
		}
		w.rules("alice") // forgets what was pinned
		w.rules("alice", rule)
	}
	j := w.jail("alice", rule)
	at := fmt.Sprintf("api.test:%d", u.port)
	for _, bad := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "100.64.0.1", "198.18.0.1", "0.0.0.0"} {
		use(bad)
		if _, err := j.tunnelTo(at, "api.test"); err == nil || !contains(err, "ip_denied") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if n := len(u.requests()); n != 0 {
		t.Errorf("the server saw %d requests", n)
	}
	rule.Addresses = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	use("127.0.0.1")
	tc, err := j.tunnelTo(at, "api.test")
	if err != nil {
		t.Fatal(err)
	}
	if _, body := talk(t, tc, "GET / HTTP/1.1\r\nHost: "+at+"\r\n\r\n"); body != "hello" {
		t.Errorf("got %q", body)
	}
}
