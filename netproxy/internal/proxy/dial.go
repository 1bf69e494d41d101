package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandboxd/netproxy/internal/names"
)

var (
	errAddress = errors.New("address refused")
	errLookup  = errors.New("name not resolved")
	errReach   = errors.New("no connection")
	errTLS     = errors.New("upstream TLS refused")
)

// vetter is the rule's idea of addresses. What the operator wrote under
// resolve is explicit, so it is allowed whatever it is.
func (r *rule) vetter() *names.Vetter {
	return &names.Vetter{Ranges: r.Addresses, Exact: r.Resolve}
}

// resolve finds and vets the addresses of a granted host (step 11). The answer
// is pinned, so that what was vetted is what is dialled.
func (s *Server) resolve(ctx context.Context, t *tenant, r *rule, h names.Host) ([]netip.Addr, error) {
	key := r.ID + "\x00" + h.Name
	if addrs, ok := t.pinned(key); ok {
		return addrs, nil
	}
	addrs := slices.Clone(r.Resolve)
	switch {
	case len(addrs) > 0:
	case h.IP.IsValid():
		addrs = []netip.Addr{h.IP}
	default:
		ctx, cancel := context.WithTimeout(ctx, s.limits.Dial)
		defer cancel()
		var err error
		name := h.Name
		if strings.Contains(name, ".") {
			name += "." // keeps the host's search list out
		}
		if addrs, err = s.resolver.LookupNetIP(ctx, "ip", name); err != nil || len(addrs) == 0 {
			return nil, errLookup
		}
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	if !r.vetter().AllowedAll(addrs) {
		return nil, errAddress
	}
	t.pin(key, addrs)
	return addrs, nil
}

// dial connects to one of the vetted addresses; the kernel's own idea of the
// address is looked at once more before the connection is made (step 12).
func (s *Server) dial(ctx context.Context, r *rule, addrs []netip.Addr, port uint16) (*net.TCPConn, error) {
	v := r.vetter()
	d := net.Dialer{
		Timeout: s.limits.Dial / 2,
		Control: func(network, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil || ap.Port() != port || !slices.Contains(addrs, ap.Addr().Unmap()) || !v.Allowed(ap.Addr()) {
				return errAddress
			}
			return nil
		},
	}
	ctx, cancel := context.WithTimeout(ctx, s.limits.Dial)
	defer cancel()
	for _, a := range addrs {
		c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String())
		if err == nil {
			if tcp, ok := c.(*net.TCPConn); ok {
				return tcp, nil
			}
			c.Close()
		}
		if ctx.Err() != nil {
			break
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, context.DeadlineExceeded
	}
	return nil, errReach
}

// A pool holds the connections of one tenant under one rule, and so with one
// credential: no other tenant and no other credential ever rides on them
// (step 17).
type pool struct {
	server *Server
	tenant *tenant
	rule   *rule

	mu         sync.Mutex
	transports map[string]*http.Transport // by host and port
}

// maxHosts bounds the hosts of a wildcard rule.
const maxHosts = 256

func (s *Server) newPool(t *tenant) func(*rule) *pool {
	return func(r *rule) *pool {
		return &pool{server: s, tenant: t, rule: r, transports: map[string]*http.Transport{}}
	}
}

// roundTrip sends one request. It follows nothing and asks no environment.
func (p *pool) roundTrip(scheme string, h names.Host, port uint16, out *http.Request) (*http.Response, error) {
	key := scheme + h.Authority(port, 0)
	p.mu.Lock()
	t := p.transports[key]
	if t == nil {
		if len(p.transports) >= maxHosts {
			p.drop()
		}
		t = p.newTransport(h, port)
		p.transports[key] = t
	}
	p.mu.Unlock()
	return t.RoundTrip(out)
}

func (p *pool) newTransport(h names.Host, port uint16) *http.Transport {
	s, limits := p.server, p.server.limits
	connect := func(ctx context.Context) (net.Conn, error) {
		addrs, err := s.resolve(ctx, p.tenant, p.rule, h)
		if err != nil {
			return nil, err
		}
		c, err := s.dial(ctx, p.rule, addrs, port)
		if err != nil {
			return nil, err
		}
		return &slowConn{Conn: c, read: limits.Answer, write: limits.Idle}, nil
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := connect(ctx)
			if err != nil {
				return nil, err
			}
			return s.upstreamTLS(ctx, c, h)
		},
		Proxy:                  nil,
		DisableCompression:     true, // the redactor must see plain bytes
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        30 * time.Second,
		ResponseHeaderTimeout:  limits.Answer,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         32 << 10,
	}
}

// upstreamTLS verifies the server by the host's own roots (step 13). There is
// no switch to turn that off.
func (s *Server) upstreamTLS(ctx context.Context, c net.Conn, h names.Host) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Dial)
	defer cancel()
	tc := tls.Client(c, &tls.Config{
		ServerName: h.Name, RootCAs: s.roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		ClientSessionCache: nil,
	})
	if err := tc.HandshakeContext(ctx); err != nil {
		c.Close()
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
		return nil, errTLS
	}
	return tc, nil
}

// close lets what is under way finish; its connection ends after the
// transport's idle time at the latest.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

// drop forgets all transports; p.mu is held.
func (p *pool) drop() {
	for key, t := range p.transports {
		t.CloseIdleConnections()
		delete(p.transports, key)
	}
}

// reason turns a failure into its fixed word (step 21).
func reason(ctx context.Context, err error) string {
	var timeout net.Error
	var cert *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var limit *limitError
	switch {
	case errors.As(err, &limit), errors.As(context.Cause(ctx), &limit):
		return limit.reason()
	case errors.Is(context.Cause(ctx), errRevoked):
		return "revoked"
	case errors.Is(context.Cause(ctx), context.Canceled):
		return "client_gone"
	case errors.Is(err, errAddress):
		return "ip_denied"
	case errors.Is(err, errLookup):
		return "dns_failed"
	case errors.Is(err, errReach):
		return "upstream_unreachable"
	case errors.Is(err, errTLS), errors.As(err, &cert), errors.As(err, &unknown):
		return "upstream_tls"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "upstream_timeout"
	}
	return "upstream_failed"
}

// upstreamRefusal is the answer for a failure on the way.
func upstreamRefusal(ctx context.Context, err error, h names.Host) *refusal {
	if limit := limitIn(ctx, err); limit != nil {
		r := limit.refusal(h.Name)
		r.closing = true
		return r
	}
	why := reason(ctx, err)
	if why == "ip_denied" {
		return addressDenied(h)
	}
	return failed(why, h)
}

// A slowConn gives each read and write a time of its own.
type slowConn struct {
	net.Conn
	read, write time.Duration
}

func (c *slowConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.read)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *slowConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.write)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// flightContext bounds a whole request or tunnel (step 2).
func flightContext(most time.Duration, limit *limitError) (context.Context, context.CancelCauseFunc) {
	ctx, stop := context.WithTimeoutCause(context.Background(), most, limit)
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, func(cause error) { cancel(cause); stop() }
}
