package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"sandboxd/netproxy/internal/names"
	"sandboxd/netproxy/internal/strict"
)

// connect answers CONNECT (steps 4 to 8). Whatever happens, the connection is
// used up afterwards.
func (c *session) connect(head *strict.Head) {
	if c.mode != modeProxy {
		c.reject(head, misdirected(c.host, "no tunnel inside a tunnel"))
		return
	}
	h, port, err := names.SplitHostPort(head.Target, 443)
	if err != nil {
		c.reject(head, malformed("host_invalid", "CONNECT needs host:port"))
		return
	}
	if head.Host != "" {
		// Some clients leave the port out of Host here.
		hh, hp, err := names.SplitHostPort(head.Host, port)
		if err != nil || hh != h || hp != port {
			c.reject(head, misdirected(h, "the Host must be the CONNECT target"))
			return
		}
	}
	if c.t.rules.Load().named(h, port) {
		c.connectService(head, h, port)
		return
	}
	t := &tunnel{c: c, host: h, port: port, rec: c.record("tunnel")}
	t.rec.target("https", h, port)
	if r := t.open(); r != nil {
		c.refuse(head, r)
		return
	}
	defer t.close()
	_ = c.conn.SetWriteDeadline(c.s.idleDeadline())
	if _, err := io.WriteString(c.conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		t.end("client_gone")
		return
	}
	if hello := t.hello(); hello != nil { // step 7
		t.run(hello)
	}
}

// connectService is CONNECT for a named service.
func (c *session) connectService(head *strict.Head, h names.Host, port uint16) {
	t, r := c.dialService(h, port)
	if r != nil {
		c.refuse(head, r)
		return
	}
	defer t.close()
	_ = c.conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(c.conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		t.end("client_gone")
		return
	}
	t.carry()
}

// captured serves a connection to port 443 that was redirected here: its
// target is what the ClientHello names, whatever address it was made to.
func (c *session) captured() {
	_ = c.conn.SetReadDeadline(time.Now().Add(c.s.limits.Header))
	hello, err := strict.ReadHello(c.br)
	if err != nil {
		return
	}
	rec := c.record("tunnel")
	h, err := names.Canonical(hello.ServerName)
	if err != nil || h.IP.IsValid() || hello.ECH {
		rec.d.Scheme, rec.d.Port = "https", 443
		rec.refused("sni_missing")
		c.alert(alertUnrecognizedName)
		return
	}
	t := &tunnel{c: c, host: h, port: 443, rec: rec}
	rec.target("https", h, 443)
	if e := c.t.charge(); e != nil { // step 2
		c.limited("tunnel", e, h.Name)
		c.alert(alertAccessDenied)
		return
	}
	if r := t.open(); r != nil {
		c.alert(alertAccessDenied)
		return
	}
	defer t.close()
	t.run(hello)
}

// TLS alerts tell a client without an HTTP conversation why it ends.
const (
	alertAccessDenied     = 49
	alertUnrecognizedName = 112
)

func (c *session) alert(code byte) {
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.conn.Write([]byte{21, 3, 3, 0, 2, 2, code})
	c.linger()
}

// A tunnel is a TLS connection on its way: opaque, or intercepted.
type tunnel struct {
	c         *session
	host      names.Host
	port      uint16
	intercept bool
	raw       bool // a named service: bytes that nobody reads
	rec       *record
	rule      *rule
	flight    *flight
	ticket    *ticket
	ctx       context.Context
	up        *net.TCPConn
	ended     bool
}

// open decides (step 6). For an opaque tunnel it also resolves, records and
// connects, so that a refusal can still be said in HTTP.
func (t *tunnel) open() *refusal {
	c := t.c
	var why string
	t.rule, t.intercept, why = c.t.rules.Load().tunnel(t.scheme(), t.host, t.port)
	if t.rule == nil {
		t.rec.refused(why)
		return denied(why, t.scheme(), t.host, t.port, "CONNECT", "")
	}
	if t.intercept && c.link == nil {
		t.rec.refused("unsupported")
		return misdirected(t.host, "no tunnel here")
	}
	if r := t.admit(); r != nil {
		return r
	}
	var ok bool
	t.ctx, t.flight, ok = c.flight(t.only(), func(set *ruleset) bool {
		return sameEndpoint(set, t.scheme(), t.host, t.port, t.intercept)
	})
	if !ok {
		c.land(t.flight)
		t.ticket.done()
		t.rec.refused("revoked")
		return failed("revoked", t.host)
	}
	if t.intercept {
		return nil // each request inside is decided and recorded by itself
	}
	if r := t.reach(); r != nil {
		c.land(t.flight)
		t.ticket.done()
		return r
	}
	return nil
}

func (t *tunnel) scheme() string {
	if t.raw {
		return "tcp"
	}
	return "https"
}

// admit holds an opaque tunnel against its limits (step 2). In an intercepted
// one each request is.
func (t *tunnel) admit() *refusal {
	if t.intercept {
		return nil
	}
	k, limit := t.c.t.admit(t.rule)
	if limit != nil {
		t.rec.d.Rule = t.rule.ID
		t.rec.limited(limit)
		return limit.refusal(t.host.Name)
	}
	t.ticket = k
	return nil
}

// only is the rule that all of the tunnel is under, if it is one.
func (t *tunnel) only() *rule {
	if t.intercept {
		return nil
	}
	return t.rule
}

func (t *tunnel) reach() *refusal {
	c := t.c
	addrs, err := c.s.resolve(t.ctx, c.t, t.rule, t.host) // step 11
	if err != nil {
		r := upstreamRefusal(t.ctx, err, t.host)
		t.rec.refused(r.reason)
		return r
	}
	t.rec.granted(t.rule, addrs)
	if !t.rec.decided(t.ctx) { // step 22
		return unrecorded()
	}
	if t.up, err = c.s.dial(t.ctx, t.rule, addrs, t.port); err != nil { // step 12
		r := upstreamRefusal(t.ctx, err, t.host)
		t.rec.finished(r.reason, r.status, 0, 0)
		t.ended = true
		return r
	}
	if remote, err := netip.ParseAddrPort(t.up.RemoteAddr().String()); err == nil {
		t.rec.d.Address = remote.Addr().Unmap()
	}
	return nil
}

// end records how an opaque tunnel went, or that an intercepted one did not
// come about.
func (t *tunnel) end(why string) {
	if t.ended {
		return
	}
	t.ended = true
	if t.intercept {
		t.rec.refused(why)
		return
	}
	t.rec.finished(why, 0, 0, 0)
}

func (t *tunnel) close() {
	if t.up != nil {
		t.up.Close()
	}
	t.c.land(t.flight)
	t.ticket.done()
}

// hello reads the ClientHello and holds it against the CONNECT target (step
// 7). An address has no server name.
func (t *tunnel) hello() *strict.Hello {
	c := t.c
	_ = c.conn.SetReadDeadline(time.Now().Add(c.s.limits.Header))
	hello, err := strict.ReadHello(c.br)
	if err != nil {
		if errors.Is(err, strict.ErrHello) {
			t.end("not_tls")
		} else {
			t.end("client_gone")
		}
		return nil
	}
	if !t.names(hello) {
		t.end("sni_mismatch")
		c.alert(alertUnrecognizedName)
		return nil
	}
	return hello
}

func (t *tunnel) names(hello *strict.Hello) bool {
	if hello.ECH {
		return false
	}
	if t.host.IP.IsValid() {
		return hello.ServerName == ""
	}
	h, err := names.Canonical(hello.ServerName)
	return err == nil && h == t.host
}

func (t *tunnel) run(hello *strict.Hello) {
	_ = t.c.conn.SetDeadline(time.Time{})
	if t.intercept {
		t.terminate(hello)
	} else {
		t.splice(hello)
	}
}

// terminate speaks TLS with the client in the host's place and serves the
// requests inside, each decided by itself (steps 8, 9).
func (t *tunnel) terminate(hello *strict.Hello) {
	c := t.c
	cert, err := c.link.ca.leafFor(t.host)
	if err != nil {
		t.end("internal")
		return
	}
	replay := &replayConn{Conn: c.conn, r: io.MultiReader(bytes.NewReader(hello.Raw), c.br)}
	server := tls.Server(replay, &tls.Config{
		Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		SessionTicketsDisabled: true,
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			if !strings.EqualFold(info.ServerName, strings.TrimSuffix(hello.ServerName, ".")) {
				return nil, strict.ErrHello // two readers, two names
			}
			return nil, nil
		},
	})
	ctx, cancel := context.WithTimeout(t.ctx, c.s.limits.Header)
	err = server.HandshakeContext(ctx)
	cancel()
	if err != nil {
		t.end("client_tls")
		return
	}
	stop := context.AfterFunc(t.ctx, func() { c.conn.Close() }) // step 23
	defer stop()
	inner := &session{
		s: c.s, t: c.t, link: c.link, origin: c.origin, runID: c.runID, mode: modeTunnel,
		conn: server, br: bufio.NewReaderSize(server, readerSize), host: t.host, port: t.port,
	}
	inner.serve()
	_ = server.Close()
	inner.join()
}

// join waits for the goroutine that watches the connection, which is closed.
func (c *session) join() {
	if c.waiting != nil {
		<-c.waiting
		c.waiting = nil
	}
}

// splice carries bytes both ways until both sides are done. The bytes go
// through this process: splice(2) would be faster by little, next to TLS, and
// is a part of the kernel that a process which parses hostile input should not
// have.
func (t *tunnel) splice(hello *strict.Hello) {
	c := t.c
	stop := context.AfterFunc(t.ctx, func() { // step 23, and the total time
		t.up.Close()
		c.conn.Close()
	})
	defer stop()
	early, _ := c.br.Peek(c.br.Buffered())
	first := append(bytes.Clone(hello.Raw), early...)
	if limit := t.ticket.sent(len(first)); limit != nil {
		t.end(reason(t.ctx, limit))
		return
	}
	if _, err := t.up.Write(first); err != nil {
		t.end("upstream_failed")
		return
	}
	p := &pipe{idle: c.s.limits.Tunnel, out: t.ticket.sent, in: t.ticket.received}
	out, in := p.run(c.conn, t.up)
	t.ended = true
	why := t.why()
	t.rec.finished(why, 0, out+int64(len(first)), in)
}

// why is the fixed word for the end of a tunnel that was not its own.
func (t *tunnel) why() string {
	if limit := limitOf(t.ctx, t.ticket); limit != nil {
		t.rec.cutBy(limit)
		return limit.reason()
	}
	if errors.Is(context.Cause(t.ctx), errRevoked) {
		return "revoked"
	}
	return ""
}

func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// A replayConn reads what was read already once more.
type replayConn struct {
	net.Conn
	r io.Reader
}

func (c *replayConn) Read(p []byte) (int, error) { return c.r.Read(p) }
