package netproxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/egress"
	"sandboxd/netproxy/internal/pkgcache"
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
	// packages are what the rules with a package cache have kept; nil: nothing is.
	packages *pkgcache.Store
	peer     *control.Peer // of the process that is being started; the supervisor's

	placeholders []byte // the key of the credentials' placeholders

	// gate is held for reading while a process is told of a change, and for
	// writing while a new one is told everything. Order: gate, then mu.
	gate  sync.RWMutex
	stop  chan struct{} // closed by Close
	ended chan struct{} // closed when no process will run any more

	mu       sync.Mutex
	child    *child                   // the process that serves; nil while there is none
	up       chan struct{}            // closed when there is one
	state    State                    // what became of the processes
	grants   map[string]control.Rules // by tenant
	links    map[string]*Link         // by tenant
	nextLink uint64
	previews map[string]Preview // by label
	closing  bool
}

// Start makes the egress namespace and starts the proxy process. It returns
// when that process is confined and serves.
func Start(ctx context.Context, cfg Config) (*Proxy, error) {
	closeAll := func() {
		for _, f := range cfg.Credentials {
			f.Close()
		}
	}
	if cfg.OnDecisions == nil || cfg.Log == nil {
		closeAll()
		return nil, errors.New("netproxy: OnDecisions and Log must be set")
	}
	if !cfg.Synthetic.IsValid() {
		cfg.Synthetic = DefaultSynthetic
	}
	network, err := egress.New(cfg.Links)
	if err != nil {
		closeAll()
		return nil, fmt.Errorf("netproxy: %w", err)
	}
	p := &Proxy{cfg: cfg, network: network, stop: make(chan struct{}), ended: make(chan struct{}), up: make(chan struct{}),
		grants: map[string]control.Rules{}, links: map[string]*Link{}, previews: map[string]Preview{}}
	p.placeholders = make([]byte, 32)
	_, _ = rand.Read(p.placeholders) // never fails
	err = p.openPackages()
	if err == nil {
		err = p.boot(ctx)
	}
	if err != nil {
		close(p.ended)
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	go p.supervise()
	go p.watchNameServers()
	return p, nil
}

// startChild runs the process and gives it what it needs before it confines
// itself: credentials (unread here), roots, the preview listener.
func (p *Proxy) startChild(ctx context.Context, c *child) error {
	roots, err := HostRoots()
	if err != nil {
		return err
	}
	p.peer = c.peer
	if p.packages != nil {
		// What an earlier process was writing ends here.
		if err := p.packages.Close(); err != nil {
			return err
		}
	}
	if err := p.sendCredentials(ctx); err != nil {
		return err
	}
	if err := p.sendStoreKey(ctx); err != nil {
		return err
	}
	names, _ := halves(p.cfg.Synthetic)
	hello := control.Hello{
		Roots: roots, Servers: nameServers(resolvConf), PreviewBase: p.cfg.PreviewBase, PreviewHTTPS: p.cfg.PreviewHTTPS,
		Packages: p.packages != nil, Synthetic: names, Limits: p.cfg.Limits,
		PlaceholderKey: p.placeholders,
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
			if err := p.sendPreviewTLS(ctx, p.peer); err != nil {
				return err
			}
		}
		hello.Preview, files = true, []*os.File{f}
	}
	if _, err := p.peer.Call(ctx, control.MethodHello, hello, nil, files...); err != nil {
		return fmt.Errorf("netproxy: the proxy process did not start: %w", err)
	}
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
		if _, err := f.Seek(0, io.SeekStart); err != nil { // an earlier process has read it
			return fmt.Errorf("netproxy: credential %s: %w", name, err)
		}
		names, files = append(names, name), append(files, f)
		if len(names) == atOnce {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return send()
}

// SetRules replaces what the tenant may reach, and its limits under all rules
// together, in one step. Requests, tunnels and connections that the new rules no
// longer grant are cut; the others go on. After an error nothing is granted.
func (p *Proxy) SetRules(ctx context.Context, tenant string, rules []policy.Rule, limits policy.EgressLimits) error {
	if err := policy.ValidTenant(tenant); err != nil {
		return err
	}
	in := control.Rules{Tenant: tenant, Rules: rules, Limits: limits}
	var l *Link
	err := p.tell(ctx, control.MethodRules, in, func() { p.grants[tenant], l = in, p.links[tenant] })
	if err != nil || l == nil {
		return err
	}
	return l.offer(ctx)
}

// RemoveTenant ends everything the tenant has here: link, rules, previews.
func (p *Proxy) RemoveTenant(ctx context.Context, tenant string) error {
	var l *Link
	err := p.tell(ctx, control.MethodRemove, control.Remove{Tenant: tenant}, func() {
		l = p.links[tenant]
		delete(p.grants, tenant)
		for label, v := range p.previews {
			if v.Tenant == tenant {
				delete(p.previews, label)
			}
		}
	})
	if l != nil {
		err = errors.Join(err, l.Close())
	}
	return err
}

// Close ends the proxy process and the egress namespace. It returns when the
// process is reaped and every device is gone.
func (p *Proxy) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closing {
		p.closing = true
		close(p.stop)
	}
	links := p.links
	p.links = map[string]*Link{}
	clear(p.previews)
	c := p.child
	p.mu.Unlock()
	var err error
	if c != nil {
		err = c.stop(ctx)
	}
	<-p.ended // no other process comes
	for _, f := range p.cfg.Credentials {
		f.Close()
	}
	for _, l := range links {
		l.once.Do(func() { l.free() })
	}
	if p.cfg.Preview != nil {
		_ = p.cfg.Preview.Close()
	}
	if p.packages != nil {
		err = errors.Join(err, p.packages.Close())
	}
	return errors.Join(err, p.network.Close(ctx))
}

// Done is closed when no proxy process will run any more: after Close.
func (p *Proxy) Done() <-chan struct{} { return p.ended }

// Main is the role "netproxy": it runs the proxy process on descriptor 3 and
// does not return.
func Main() { os.Exit(proxy.Main()) }
