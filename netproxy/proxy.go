package netproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/egress"
	"sandboxd/netproxy/internal/proxy"
	"sandboxd/policy"
)

// DefaultSynthetic is the range of DNS answers: reserved for benchmarks, so
// nothing that a sandbox may reach has one of these addresses.
var DefaultSynthetic = netip.MustParsePrefix("198.18.0.0/15")

// A Proxy is the running egress network and proxy process.
type Proxy struct {
	cfg     Config
	network *egress.Network
	child   *child
	peer    *control.Peer

	mu       sync.Mutex
	links    map[string]*Link // by tenant
	nextLink uint64
	previews map[string]Preview // by label
	closing  bool
}

// Start makes the egress namespace and starts the proxy process. It returns
// when that process is confined and serves.
func Start(ctx context.Context, cfg Config) (*Proxy, error) {
	defer func() {
		for _, f := range cfg.Credentials {
			f.Close()
		}
	}()
	if cfg.OnDecision == nil || cfg.Log == nil {
		return nil, errors.New("netproxy: OnDecision and Log must be set")
	}
	if cfg.Spare == 0 {
		cfg.Spare = 2
	}
	if !cfg.Synthetic.IsValid() {
		cfg.Synthetic = DefaultSynthetic
	}
	roots, err := HostRoots()
	if err != nil {
		return nil, err
	}
	network, err := egress.New(cfg.Links, max(cfg.Spare, 0))
	if err != nil {
		return nil, fmt.Errorf("netproxy: %w", err)
	}
	p := &Proxy{cfg: cfg, network: network, links: map[string]*Link{}, previews: map[string]Preview{}}
	if err := p.startChild(ctx, roots); err != nil {
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// startChild runs the process and gives it what it needs before it confines
// itself: credentials (unread here), roots, the preview listener.
func (p *Proxy) startChild(ctx context.Context, roots []byte) error {
	var err error
	if p.child, err = startChild(p.cfg, p.handle); err != nil {
		return err
	}
	p.peer = p.child.peer
	if err := p.sendCredentials(ctx); err != nil {
		return err
	}
	servers := nameServers(resolvConf)
	hello := control.Hello{
		Roots: roots, Servers: servers, PreviewBase: p.cfg.PreviewBase, PreviewHTTPS: p.cfg.PreviewHTTPS, Synthetic: p.cfg.Synthetic, Limits: p.cfg.Limits,
	}
	var files []*os.File
	if p.cfg.Preview != nil {
		l, ok := p.cfg.Preview.(interface{ File() (*os.File, error) })
		if !ok {
			return errors.New("netproxy: the preview listener has no descriptor")
		}
		f, err := l.File()
		if err != nil {
			return fmt.Errorf("netproxy: preview listener: %w", err)
		}
		defer f.Close()
		if p.cfg.PreviewTLS != nil {
			if err := p.sendPreviewTLS(ctx); err != nil {
				return err
			}
		}
		hello.Preview, files = true, []*os.File{f}
	}
	if _, err := p.peer.Call(ctx, control.MethodHello, hello, nil, files...); err != nil {
		return fmt.Errorf("netproxy: the proxy process did not start: %w", err)
	}
	go p.watchNameServers(servers)
	return nil
}

func (p *Proxy) sendCredentials(ctx context.Context) error {
	const atOnce = 8
	var names []string
	var files []*os.File
	send := func() error {
		if len(names) == 0 {
			return nil
		}
		_, err := p.peer.Call(ctx, control.MethodCredentials, control.Credentials{Names: names}, nil, files...)
		names, files = nil, nil
		if err != nil {
			return fmt.Errorf("netproxy: credentials: %w", err)
		}
		return nil
	}
	for name, f := range p.cfg.Credentials {
		names, files = append(names, name), append(files, f)
		if len(names) == atOnce {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return send()
}

// call asks the proxy process.
func (p *Proxy) call(ctx context.Context, method string, in, out any, files ...*os.File) error {
	_, err := p.peer.Call(ctx, method, in, out, files...)
	if errors.Is(err, control.ErrClosed) {
		return ErrClosed
	}
	if err != nil {
		return fmt.Errorf("netproxy: %s: %w", method, err)
	}
	return nil
}

// SetRules replaces what the tenant may reach, in one step. Requests and
// tunnels that the new rules no longer grant are cut. After an error nothing
// is granted.
func (p *Proxy) SetRules(ctx context.Context, tenant string, rules []policy.Rule) error {
	if err := policy.ValidTenant(tenant); err != nil {
		return err
	}
	return p.call(ctx, control.MethodRules, control.Rules{Tenant: tenant, Rules: rules}, nil)
}

// RemoveTenant ends everything the tenant has here: link, rules, previews.
func (p *Proxy) RemoveTenant(ctx context.Context, tenant string) error {
	p.mu.Lock()
	l := p.links[tenant]
	for label, v := range p.previews {
		if v.Tenant == tenant {
			delete(p.previews, label)
		}
	}
	p.mu.Unlock()
	err := p.call(ctx, control.MethodRemove, control.Remove{Tenant: tenant}, nil)
	if l != nil {
		err = errors.Join(err, l.Close())
	}
	return err
}

// Close ends the proxy process and the egress namespace. It returns when the
// process is reaped and every device is gone.
func (p *Proxy) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	links := p.links
	p.links = map[string]*Link{}
	clear(p.previews)
	p.mu.Unlock()
	var err error
	if p.child != nil {
		err = p.child.stop(ctx)
	}
	for _, l := range links {
		l.once.Do(func() { l.link.Close() })
	}
	if p.cfg.Preview != nil {
		_ = p.cfg.Preview.Close()
	}
	return errors.Join(err, p.network.Close(ctx))
}

// Done is closed when the proxy process has ended, for whatever reason.
func (p *Proxy) Done() <-chan struct{} { return p.child.done }

// Main is the role "netproxy": it runs the proxy process on descriptor 3 and
// does not return.
func Main() { os.Exit(proxy.Main()) }
