package proxy

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"

	"sandboxd/netproxy/internal/names"
)

// answerTTL is short: what a name may be asked for can change at any time.
const answerTTL = 30

// A nameServer answers one jail. It looks nothing up: a granted name has a
// synthetic address that leads to this jail's proxy, every other name does not
// exist.
type nameServer struct {
	s *Server
	t *tenant
}

// ServeDNS implements dns.Handler.
func (n *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	m.Rcode = n.answer(q, m)
	_ = w.WriteMsg(m)
}

func (n *nameServer) record() *record {
	rec := &record{s: n.s, start: time.Now()}
	rec.d.Tenant, rec.d.Origin, rec.d.Kind = n.t.name, "jail", "dns"
	return rec
}

func (n *nameServer) answer(q, m *dns.Msg) int {
	if q.Opcode != dns.OpcodeQuery || q.Response || len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
		return dns.RcodeRefused
	}
	if e := n.t.charge(); e != nil { // step 2
		if suppressed, ok := n.t.mayRecord(); ok {
			rec := n.record()
			rec.d.Suppressed = suppressed
			rec.limited(e)
		}
		return dns.RcodeRefused
	}
	question := q.Question[0]
	h, err := names.Canonical(question.Name)
	if err != nil || h.IP.IsValid() {
		return dns.RcodeNameError
	}
	rec := n.record()
	rec.d.Host = h.Name
	rec.d.Method = dns.TypeToString[question.Qtype]
	g := n.t.rules.Load().knows(h)
	if g == nil {
		rec.refused("no_rule")
		return dns.RcodeNameError
	}
	rec.granted(g, nil)
	if question.Qtype == dns.TypeA {
		rec.d.Address = n.t.address(h, n.s.synthetic)
	}
	if !rec.decided(context.Background()) {
		return dns.RcodeServerFailure
	}
	if question.Qtype == dns.TypeA {
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: answerTTL},
			A:   rec.d.Address.AsSlice(),
		})
	}
	return dns.RcodeSuccess // other types: the name exists and has none
}

// countedListener holds the tenant's limit of connections against those of
// DNS, too (step 2): descriptors are what all tenants share here.
type countedListener struct {
	net.Listener
	t *tenant
}

func (l *countedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.t.enter() == nil {
			return &countedConn{Conn: c, t: l.t}, nil
		}
		c.Close()
	}
}

type countedConn struct {
	net.Conn
	t    *tenant
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(c.t.leave)
	return c.Conn.Close()
}

// servers serve both sockets until they are closed.
func (n *nameServer) servers(udp net.PacketConn, tcp net.Listener) []*dns.Server {
	limits := n.s.limits
	servers := []*dns.Server{
		{PacketConn: udp, Handler: n, ReadTimeout: limits.Header, WriteTimeout: limits.Header},
		{Listener: &countedListener{tcp, n.t}, Handler: n, ReadTimeout: limits.Header, WriteTimeout: limits.Header, MaxTCPQueries: 64},
	}
	for _, s := range servers {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			if err := s.ActivateAndServe(); err != nil {
				n.s.log.Debug("dns listener ended", "tenant", n.t.name)
			}
		}()
		select {
		case <-started:
		case <-time.After(limits.Header):
		}
	}
	return servers
}
