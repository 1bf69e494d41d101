package netproxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"sandboxd/netproxy/internal/control"
	"sandboxd/policy"
)

// maxPreviews is how many ports one tenant may publish at once: each takes
// memory in the proxy, which is everybody's.
const maxPreviews = 64

// Expose publishes a port of the tenant's jail under an unguessable host name.
// A port that is published already gets a new name, and the old one ends.
func (p *Proxy) Expose(ctx context.Context, tenant string, port uint16, ttl time.Duration) (Preview, error) {
	if err := policy.ValidTenant(tenant); err != nil {
		return Preview{}, err
	}
	if p.cfg.Preview == nil {
		return Preview{}, ErrNoPreview
	}
	if port == 0 || ttl <= 0 {
		return Preview{}, fmt.Errorf("netproxy: a port from 1 to 65535 and a positive time are needed")
	}
	if err := p.Unexpose(ctx, tenant, port); err != nil && err != ErrNotExposed {
		return Preview{}, err
	}
	var token [16]byte
	if _, err := rand.Read(token[:]); err != nil {
		return Preview{}, err
	}
	v := Preview{Tenant: tenant, Port: port, Token: hex.EncodeToString(token[:]), Expires: time.Now().Add(ttl)}
	label := fmt.Sprintf("p%d-%s", port, v.Token)
	v.URL = p.scheme() + "://" + label + "." + p.cfg.PreviewBase + "/"
	p.mu.Lock()
	many := p.published(tenant) >= maxPreviews
	p.mu.Unlock()
	if many {
		return Preview{}, fmt.Errorf("a tenant publishes at most %d ports: %w", maxPreviews, ErrTooMany)
	}
	if err := p.tell(ctx, control.MethodExpose, v.message(label), func() { p.previews[label] = v }); err != nil {
		p.forget(label)
		return Preview{}, err
	}
	return v, nil
}

func (p *Proxy) scheme() string {
	if p.cfg.PreviewHTTPS {
		return "https"
	}
	return "http"
}

// RenewPreviewTLS has the preview listener show the certificate that is in the
// files now; connections that are open keep the old one. After an error it
// keeps the old one for all.
func (p *Proxy) RenewPreviewTLS(ctx context.Context) error {
	if p.cfg.Preview == nil || p.cfg.PreviewTLS == nil {
		return nil
	}
	c, err := p.serving(ctx)
	if err != nil {
		return err
	}
	return p.sendPreviewTLS(ctx, c.peer)
}

func (p *Proxy) sendPreviewTLS(ctx context.Context, peer *control.Peer) error {
	chain, key, err := p.cfg.PreviewTLS()
	if err != nil {
		return fmt.Errorf("netproxy: the preview's certificate: %w", err)
	}
	defer chain.Close()
	defer key.Close()
	_, err = peer.Call(ctx, control.MethodPreviewTLS, nil, nil, chain, key)
	return asked(control.MethodPreviewTLS, err)
}

func (v *Preview) message(label string) control.Expose {
	return control.Expose{Label: label, Tenant: v.Tenant, Port: v.Port, Expires: v.Expires}
}

// published counts the tenant's ports; p.mu is held.
func (p *Proxy) published(tenant string) int {
	n := 0
	for _, v := range p.previews {
		if v.Tenant == tenant && time.Now().Before(v.Expires) {
			n++
		}
	}
	return n
}

func (p *Proxy) forget(label string) {
	p.mu.Lock()
	delete(p.previews, label)
	p.mu.Unlock()
}

// Ports lists what the tenant has published, by port.
func (p *Proxy) Ports(tenant string) []Preview {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Preview
	for label, v := range p.previews {
		switch {
		case time.Now().After(v.Expires):
			delete(p.previews, label)
		case v.Tenant == tenant:
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b Preview) int { return int(a.Port) - int(b.Port) })
	return out
}

// Unexpose withdraws a published port; open connections are cut, and its
// address answers 410 from now on.
func (p *Proxy) Unexpose(ctx context.Context, tenant string, port uint16) error {
	p.mu.Lock()
	var labels []string
	for label, v := range p.previews {
		if v.Tenant == tenant && v.Port == port {
			labels = append(labels, label)
		}
	}
	p.mu.Unlock()
	if len(labels) == 0 {
		return ErrNotExposed
	}
	for _, label := range labels {
		err := p.tell(ctx, control.MethodUnexpose, control.Unexpose{Label: label}, func() { delete(p.previews, label) })
		if err != nil {
			return err
		}
	}
	return nil
}
