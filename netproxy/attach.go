package netproxy

import (
	"context"
	"errors"
	"fmt"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/egress"
	"sandboxd/policy"
)

// Attach makes a network namespace whose only neighbour is the proxy.
func (p *Proxy) Attach(ctx context.Context, tenant string) (*Link, error) {
	if err := policy.ValidTenant(tenant); err != nil {
		return nil, err
	}
	l := &Link{Tenant: tenant, proxy: p}
	p.mu.Lock()
	switch {
	case p.closing:
		p.mu.Unlock()
		return nil, ErrClosed
	case p.links[tenant] != nil:
		p.mu.Unlock()
		return nil, ErrAttached
	}
	p.nextLink++
	l.id = p.nextLink
	p.links[tenant] = l // the place is taken
	p.mu.Unlock()
	if err := l.build(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Link) build(ctx context.Context) error {
	link, err := l.proxy.network.Attach()
	if errors.Is(err, egress.ErrExhausted) {
		return fmt.Errorf("%w: every link address is in use", ErrExhausted)
	}
	if err != nil {
		return fmt.Errorf("netproxy: %w", err)
	}
	l.link = link
	l.NetNS, l.Address, l.Gateway = link.NetNS, link.Address, link.Gateway
	l.Resolvers = []string{link.Gateway.String()}
	url := fmt.Sprintf("http://%s:%d", link.Gateway, egress.ProxyPort)
	none := "localhost,127.0.0.1"
	l.Env = map[string]string{
		"HTTP_PROXY": url, "HTTPS_PROXY": url, "http_proxy": url, "https_proxy": url,
		"NO_PROXY": none, "no_proxy": none,
	}
	var out control.Attached
	in := control.Attach{Tenant: l.Tenant, Link: l.id, Gateway: link.Gateway}
	err = l.proxy.call(ctx, control.MethodAttach, in, &out, link.Sockets[:]...)
	link.CloseSockets() // the proxy has its own
	l.CA = out.CA
	return err
}

// Close takes the link down and closes NetNS: its connections end at once, its
// device soon after. It may be called again.
func (l *Link) Close() error {
	var err error
	l.once.Do(func() {
		p := l.proxy
		p.mu.Lock()
		if p.links[l.Tenant] == l {
			delete(p.links, l.Tenant)
		}
		p.mu.Unlock()
		if l.link == nil {
			return
		}
		err = p.call(context.Background(), control.MethodDetach, control.Detach{Link: l.id}, nil)
		if errors.Is(err, ErrClosed) {
			err = nil // it died, and every socket with it
		}
		l.link.Close()
	})
	return err
}
