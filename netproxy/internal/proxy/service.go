package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/names"
)

// A service is a listener that stands for one host and port of the rules. What
// is sent there is carried unread.
type service struct {
	host     names.Host
	port     uint16
	listener net.Listener
}

func serviceID(host string, port uint16) string { return fmt.Sprintf("%s:%d", host, port) }

// Serve offers a named service to a link's jail. The file is closed.
func (s *Server) Serve(in control.Serve, f *os.File) error {
	n, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return err
	}
	h, err := names.Canonical(in.Host)
	l := s.link(in.Link)
	if err != nil || l == nil || h.IP.IsValid() || !in.Address.Is4() {
		n.Close()
		return errOrder
	}
	sv := &service{host: h, port: in.Port, listener: n}
	if !l.addService(sv) {
		n.Close()
		return errOrder
	}
	l.t.serviceAt(h.Name, in.Address)
	l.accept(n, func(c *session) { c.service(sv) })
	return nil
}

// Unserve ends that. Connections under way are the rules' to cut.
func (s *Server) Unserve(in control.Unserve) {
	if l := s.link(in.Link); l != nil {
		l.endService(serviceID(in.Host, in.Port))
	}
}

func (s *Server) link(id uint64) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links[id]
}

func (l *link) addService(sv *service) bool {
	id := serviceID(sv.host.Name, sv.port)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.services[id] != nil {
		return false
	}
	if l.services == nil {
		l.services = map[string]*service{}
	}
	l.services[id] = sv
	return true
}

func (l *link) endService(id string) {
	l.mu.Lock()
	sv := l.services[id]
	delete(l.services, id)
	l.mu.Unlock()
	if sv != nil {
		sv.listener.Close()
	}
}

// closeServices closes all; l.mu is held.
func (l *link) closeServices() {
	for _, sv := range l.services {
		sv.listener.Close()
	}
	l.services = nil
}

// serviceAt notes the address that stands for a host with services.
func (t *tenant) serviceAt(host string, a netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.services == nil {
		t.services = map[string]netip.Addr{}
	}
	t.services[host] = a
}

// service decides on the connection that the listener stands for, and carries
// it (steps 1, 2, 6, 11, 12, 22).
func (c *session) service(sv *service) {
	if e := c.t.charge(); e != nil {
		c.limited("service", e, sv.host.Name)
		c.reset()
		return
	}
	t, r := c.dialService(sv.host, sv.port)
	if r != nil {
		c.reset() // there is no word for it in a protocol that nobody here knows
		return
	}
	defer t.close()
	t.carry()
}

// dialService opens a tunnel for bytes of any kind.
func (c *session) dialService(h names.Host, port uint16) (*tunnel, *refusal) {
	t := &tunnel{c: c, host: h, port: port, raw: true, rec: c.record("service")}
	t.rec.target("tcp", h, port)
	if r := t.open(); r != nil {
		return nil, r
	}
	return t, nil
}

// carry joins the sandbox and the service until both are done.
func (t *tunnel) carry() {
	c := t.c
	stop := context.AfterFunc(t.ctx, func() { // step 23, and the time
		t.up.Close()
		c.conn.Close()
	})
	defer stop()
	p := &pipe{idle: c.s.limits.Tunnel, out: t.ticket.sent, in: t.ticket.received}
	out, in := p.run(&bufferedConn{c.conn, c.br}, t.up)
	t.ended = true
	t.rec.finished(t.why(), 0, out, in)
}

// reset ends a connection so that the client sees an error, not an end.
func (c *session) reset() {
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.conn.Close()
}

// A bufferedConn reads what was read ahead first.
type bufferedConn struct {
	net.Conn
	br *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.br.Read(p) }

// CloseWrite tells the client that nothing more comes.
func (c *bufferedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
