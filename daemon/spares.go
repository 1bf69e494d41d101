package daemon

import (
	"bytes"
	"context"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"sandboxd/daemon/api"
	"sandboxd/jail"
	"sandboxd/netproxy"
)

// keepSpares begins to keep jails ready, each with a way out where there are any.
func (d *Daemon) keepSpares() error {
	if d.need(partJails) != nil {
		return nil
	}
	if d.need(partEgress) != nil {
		return d.jails.KeepSpares(d.cfg.JailSpares, nil)
	}
	return d.jails.KeepSpares(d.cfg.JailSpares, func(ctx context.Context) (jail.Network, error) {
		l, err := d.net.Prepare(ctx)
		if err != nil {
			return nil, err
		}
		return &spareLink{link: l, bundle: d.bundle(l)}, nil
	})
}

// bundle is what a jail trusts: the host's roots and the link's own authority.
func (d *Daemon) bundle(l *netproxy.Link) []byte {
	return bytes.Join([][]byte{d.roots, l.CA}, []byte("\n"))
}

// spareLink is the way out of a spare jail.
type spareLink struct {
	link   *netproxy.Link
	bundle []byte
	bound  chan struct{} // nil before bind; closed when it has ended
	err    error
}

func (s *spareLink) NetNS() *os.File     { return s.link.NetNS }
func (s *spareLink) Resolvers() []string { return s.link.Resolvers }
func (s *spareLink) CABundle() []byte    { return s.bundle }

// bind makes the link the tenant's while its jail is built.
func (s *spareLink) bind(ctx context.Context, tenant string) {
	s.bound = make(chan struct{})
	go func() {
		defer close(s.bound)
		s.err = s.link.Bind(ctx, tenant)
	}()
}

// wait returns when it is, or could not be made, the tenant's.
func (s *spareLink) wait() error {
	<-s.bound
	return s.err
}

// Close takes the link down, whosever it is.
func (s *spareLink) Close() error {
	if s.bound != nil {
		<-s.bound
	}
	return s.link.Close()
}

func (d *Daemon) spares() *api.JailSpares {
	if d.jails == nil {
		return nil
	}
	s := d.jails.Spares()
	return &api.JailSpares{Size: s.Size, Ready: s.Ready, Taken: s.Taken, Missed: s.Missed, Failed: s.Failed, LastError: s.LastError}
}

// spareMetrics say whether there are enough of them.
func spareMetrics(d *Daemon) (out []prometheus.Collector) {
	value := func(of func(*api.JailSpares) float64) func() float64 {
		return func() float64 {
			if s := d.spares(); s != nil {
				return of(s)
			}
			return 0
		}
	}
	out = append(out, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandboxd_jail_spares", Help: "Jails that are ready for tenants that come."},
		value(func(s *api.JailSpares) float64 { return float64(s.Ready) })))
	for _, c := range []struct {
		name, help string
		of         func(*api.JailSpares) float64
	}{
		{"taken", "Jails that were ready when a tenant came.", func(s *api.JailSpares) float64 { return float64(s.Taken) }},
		{"missed", "Jails that had to be made while a tenant waited.", func(s *api.JailSpares) float64 { return float64(s.Missed) }},
		{"failed", "Jails that could not be made ahead.", func(s *api.JailSpares) float64 { return float64(s.Failed) }},
	} {
		out = append(out, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sandboxd_jail_spares_" + c.name + "_total", Help: c.help}, value(c.of)))
	}
	return out
}
