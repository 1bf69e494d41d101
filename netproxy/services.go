package netproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"sandboxd/netproxy/internal/control"
)

// maxServices bounds the hosts with named services that one link has known: each
// has an address for the link's life.
const maxServices = 1024

// A serviceKey names a service as rules do.
type serviceKey struct {
	host string
	port uint16
}

// services are the named TCP services that a link's jail may reach. Each host
// has an address that stands for it, and each port a socket there.
type services struct {
	mu      sync.Mutex
	addrs   map[string]netip.Addr
	sockets map[serviceKey]*os.File
}

// halves splits the range of synthetic addresses: the proxy gives addresses of
// the first to names that it looks up, the daemon those of the second to
// services.
func halves(p netip.Prefix) (names, services netip.Prefix) {
	names = netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1)
	first := names.Addr().As4()
	first[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	return names, netip.PrefixFrom(netip.AddrFrom4(first), p.Bits()+1)
}

// wanted is what the tenant's rules say now.
func (l *Link) wanted() map[serviceKey]bool {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	want := map[serviceKey]bool{}
	for _, r := range p.grants[l.Tenant].Rules {
		if r.Scheme != "tcp" {
			continue
		}
		for _, port := range r.Ports {
			want[serviceKey{r.Host, port}] = true
		}
	}
	return want
}

// offer brings the services of the link in line with the rules. What is granted
// as before is not touched.
func (l *Link) offer(ctx context.Context) error {
	p := l.proxy
	p.gate.RLock()
	defer p.gate.RUnlock()
	l.services.mu.Lock()
	defer l.services.mu.Unlock()
	p.mu.Lock()
	attached, c := l.attached, p.child
	p.mu.Unlock()
	if !attached {
		return nil
	}
	want := l.wanted()
	var errs []error
	for k, f := range l.services.sockets {
		if want[k] {
			continue
		}
		errs = append(errs, p.told(ctx, c, control.MethodUnserve, control.Unserve{Link: l.id, Host: k.host, Port: k.port}),
			l.link.EndService(l.services.addrs[k.host], k.port))
		f.Close()
		delete(l.services.sockets, k)
	}
	for k := range want {
		if l.services.sockets[k] != nil {
			continue
		}
		f, err := l.openService(k)
		if err == nil {
			err = p.told(ctx, c, control.MethodServe, l.serve(k), f)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// openService makes the socket of a service; services.mu is held.
func (l *Link) openService(k serviceKey) (*os.File, error) {
	s := &l.services
	if s.sockets == nil {
		s.addrs, s.sockets = map[string]netip.Addr{}, map[serviceKey]*os.File{}
	}
	addr, ok := s.addrs[k.host]
	if !ok {
		_, all := halves(l.proxy.cfg.Synthetic)
		if len(s.addrs) >= maxServices {
			return nil, fmt.Errorf("netproxy: more than %d hosts with services: %w", maxServices, ErrExhausted)
		}
		addr = all.Addr()
		for range len(s.addrs) + 1 {
			addr = addr.Next()
		}
		s.addrs[k.host] = addr
	}
	f, err := l.link.Service(addr, k.port)
	if err != nil {
		return nil, fmt.Errorf("netproxy: service %s:%d: %w", k.host, k.port, err)
	}
	s.sockets[k] = f
	return f, nil
}

func (l *Link) serve(k serviceKey) control.Serve {
	return control.Serve{Link: l.id, Host: k.host, Port: k.port, Address: l.services.addrs[k.host]}
}

// serveAll gives a new process the sockets of the link's services.
func (l *Link) serveAll(ctx context.Context, peer *control.Peer) error {
	l.services.mu.Lock()
	defer l.services.mu.Unlock()
	for k, f := range l.services.sockets {
		if _, err := peer.Call(ctx, control.MethodServe, l.serve(k), nil, f); err != nil {
			return asked(control.MethodServe, err)
		}
	}
	return nil
}

func (l *Link) closeServices() {
	l.services.mu.Lock()
	defer l.services.mu.Unlock()
	for k, f := range l.services.sockets {
		f.Close()
		delete(l.services.sockets, k)
	}
}
