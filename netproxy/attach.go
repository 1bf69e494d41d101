package netproxy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/egress"
	"sandboxd/policy"
)

// Attach makes a network namespace whose only neighbour is the proxy.
func (p *Proxy) Attach(ctx context.Context, tenant string) (*Link, error) {
	l := &Link{proxy: p}
	if err := l.claim(tenant); err != nil {
		return nil, err
	}
	err := l.build()
	if err == nil {
		err = l.join(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Prepare makes a link that is nobody's yet: it has its namespace and its
// authority, and nothing is served on it until Bind.
func (p *Proxy) Prepare(ctx context.Context) (*Link, error) {
	l := &Link{proxy: p}
	err := l.build()
	if err == nil {
		var out control.Attached
		err = p.call(ctx, control.MethodAuthority, nil, &out, l.authority)
		l.CA = out.CA
	}
	if err != nil {
		l.free()
		return nil, err
	}
	return l, nil
}

// Bind makes a prepared link the tenant's. A link that could not be bound is for
// Close alone.
func (l *Link) Bind(ctx context.Context, tenant string) error {
	if err := l.claim(tenant); err != nil {
		return err
	}
	return l.join(ctx)
}

// claim takes the tenant's place in the table.
func (l *Link) claim(tenant string) error {
	if err := policy.ValidTenant(tenant); err != nil {
		return err
	}
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closing:
		return ErrClosed
	case p.links[tenant] != nil:
		return ErrAttached
	}
	p.nextLink++
	l.id, l.Tenant = p.nextLink, tenant
	p.links[tenant] = l
	return nil
}

// build makes what does not depend on the tenant.
func (l *Link) build() error {
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
	l.authority, err = authorityFile()
	return err
}

// join has the proxy serve the link, and offers the tenant's services on it.
func (l *Link) join(ctx context.Context) error {
	if err := l.attach(ctx); err != nil {
		return err
	}
	return l.offer(ctx)
}

// authorityFile is where the proxy keeps the key of the link's authority for
// its successor, whom the jail must still trust. The daemon does not read it.
func authorityFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("authority", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("netproxy: %w", err)
	}
	return os.NewFile(uintptr(fd), "authority"), nil
}

// attach hands the sockets to the process that serves. The daemon keeps its
// own, so that they outlive that process.
func (l *Link) attach(ctx context.Context) error {
	p := l.proxy
	for {
		c, err := p.serving(ctx)
		if err != nil {
			return err
		}
		p.gate.RLock()
		if p.now() == c {
			err = l.handOver(ctx, c.peer)
			if err == nil {
				p.mu.Lock()
				l.attached = true
				p.mu.Unlock()
			}
		}
		p.gate.RUnlock()
		switch {
		case p.now() == c || err != nil && !errors.Is(err, control.ErrClosed):
			return asked(control.MethodAttach, err)
		}
	}
}

// handOver gives a process the link's sockets and the key that an earlier one
// has left, if one has.
func (l *Link) handOver(ctx context.Context, peer *control.Peer) error {
	var out control.Attached
	in := control.Attach{Tenant: l.Tenant, Link: l.id, Gateway: l.Gateway}
	_, err := peer.Call(ctx, control.MethodAttach, in, &out, append(l.link.Sockets[:], l.authority)...)
	if err == nil && l.CA == nil {
		l.CA = out.CA
	}
	return err
}

// free lets go of what the link holds on this side.
func (l *Link) free() {
	if l.link != nil {
		l.link.Close()
	}
	if l.authority != nil {
		l.authority.Close()
	}
	l.closeServices()
}

// SetRate holds the jail to so many bytes a second out and as many in, from now
// on; 0 means no limit.
func (l *Link) SetRate(bytes int64) error {
	if err := l.link.SetRate(bytes); err != nil {
		return fmt.Errorf("netproxy: %w", err)
	}
	return nil
}

// Close takes the link down and closes NetNS: its connections end at once, its
// device soon after. It may be called again.
func (l *Link) Close() error {
	var err error
	l.once.Do(func() {
		p := l.proxy
		if l.Tenant == "" { // the proxy does not know it
			l.free()
			return
		}
		err = p.tell(context.Background(), control.MethodDetach, control.Detach{Link: l.id}, func() {
			l.attached = false
			if p.links[l.Tenant] == l {
				delete(p.links, l.Tenant)
			}
		})
		if errors.Is(err, ErrClosed) {
			err = nil // every socket is gone
		}
		l.free()
	})
	return err
}
