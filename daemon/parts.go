package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/isolate"
	"sandboxd/jail"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

// Names of parts, also for people.
const (
	partIsolates = "isolates"
	partJails    = "jails"
	partEgress   = "outgoing requests"
)

// startParts starts pool, proxy and jails side by side.
func (d *Daemon) startParts(ctx context.Context) error {
	parts := map[string]func(context.Context) error{partIsolates: d.startPool, partJails: d.startJails}
	if d.cfg.InProcess {
		d.missing[partEgress] = errors.New("this daemon runs in process, without a proxy")
	} else {
		parts[partEgress] = d.startEgress
	}
	type outcome struct {
		part string
		took time.Duration
		err  error
	}
	ended := make(chan outcome, len(parts))
	for part, f := range parts {
		go func() {
			began := time.Now()
			err := f(ctx)
			ended <- outcome{part, time.Since(began), err}
		}()
	}
	var fatal error
	for range parts {
		o := <-ended
		if d.cfg.Progress != nil {
			d.cfg.Progress(o.part, o.took, o.err)
		}
		d.mu.Lock()
		d.startup = append(d.startup, api.StartupStep{Name: o.part, Duration: policy.Duration(o.took.Round(time.Microsecond))})
		if o.err != nil {
			d.missing[o.part] = o.err
			d.warnings = append(d.warnings, o.part+" are not available: "+o.err.Error())
			d.log.Error("a part did not start", "part", o.part, "error", o.err)
		}
		d.mu.Unlock()
		if o.err != nil && !mayLack(o.err) {
			fatal = errors.Join(fatal, &unavailableError{o.part, o.err})
		}
	}
	if fatal != nil {
		return fatal
	}
	return d.keepSpares()
}

// mayLack tells what this host does not offer, with which the daemon can live,
// from a fault.
func mayLack(err error) bool {
	var lacks *jail.UnsupportedError
	var guest *isolate.GuestError
	return errors.As(err, &lacks) || errors.As(err, &guest) || errors.Is(err, errors.ErrUnsupported)
}

func (d *Daemon) startPool(ctx context.Context) (err error) {
	cfg := isolate.Config{Exe: d.cfg.Exe, UIDBase: d.cfg.UIDBase + workerUID, GuestDir: d.cfg.GuestDir, CacheDir: d.cfg.CacheDir, Preparing: d.cfg.Preparing,
		TenantWorkers: d.cfg.TenantWorkers, TenantIdle: d.cfg.TenantIdle, Log: d.log}
	if cfg.CacheDir == "" {
		cfg.CacheDir = d.state("cache")
	}
	if cfg.Exe != "" {
		cfg.Args = []string{"role", "isolate-worker"}
	}
	if err := os.MkdirAll(cfg.CacheDir, 0o700); err != nil {
		return err
	}
	if d.cfg.InProcess {
		d.pool, err = isolate.NewInProcess(ctx, cfg)
	} else {
		d.pool, err = isolate.NewWorkers(ctx, cfg)
	}
	return err
}

func (d *Daemon) startEgress(ctx context.Context) (err error) {
	if d.roots, err = netproxy.HostRoots(); err != nil {
		return err
	}
	run := filepath.Join(d.cfg.RunDir, "egress")
	if err := os.MkdirAll(run, 0o700); err != nil {
		return err
	}
	packages := ""
	if d.cfg.PackageMax > 0 {
		packages = d.state("packages")
	}
	d.net, err = netproxy.Start(ctx, netproxy.Config{
		Exe: d.cfg.Exe, UID: d.cfg.UIDBase + proxyUID, GID: d.cfg.UIDBase + proxyUID, RunDir: run,
		Preview: d.cfg.Preview, PreviewBase: d.cfg.PreviewBase, PreviewHTTPS: d.cfg.PreviewHTTPS, PreviewTLS: d.cfg.PreviewTLS, Credentials: d.cfg.Credentials,
		PackageDir: packages, PackageMax: d.cfg.PackageMax,
		OnDecisions: d.onDecisions, OnState: d.onEgressState, DialJail: d.dialJail, PreviewActive: d.previewActive, Log: d.log,
		StoreKey: d.cfg.StoreKey, Stored: d.secrets.file.All,
		OpenToken: d.openToken,
	})
	return err
}

func (d *Daemon) startJails(ctx context.Context) error {
	if d.cfg.CgroupDir == "" {
		return &jail.UnsupportedError{Feature: "a cgroup v2 folder for jails", Found: "none", Needed: "cgroup v2 mounted, and delegated to this daemon",
			Remedy: "run under systemd with Delegate=yes, or mount cgroup2"}
	}
	run := filepath.Join(d.cfg.RunDir, "jails")
	for _, dir := range []string{run, d.state("jails")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	m, err := jail.New(ctx, jail.Config{StateDir: d.state("jails"), RunDir: run, CgroupDir: d.cfg.CgroupDir, BestEffort: d.cfg.BestEffort,
		InitPath: d.cfg.InitPath, Disk: d.cfg.Disk, TemplatesDir: d.state("templates"), UIDBase: d.cfg.UIDBase + tenantUIDs, Log: d.log})
	if err != nil {
		return err
	}
	d.jails = m
	swept, err := m.Sweep(ctx)
	if len(swept) > 0 {
		d.log.Warn("ended what an earlier daemon left", "jails", swept)
	}
	for _, tenant := range swept {
		// Every end has its cause on record, also this one.
		_, rerr := d.record(ctx, audit.Record{Kind: audit.KindJail, Tenant: tenant, Fields: map[string]any{"event": "end", "cause": jail.CauseCrash}})
		err = errors.Join(err, rerr)
	}
	return err
}

// need returns the error of a part that is not there.
func (d *Daemon) need(part string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err, ok := d.missing[part]; ok {
		return &unavailableError{part, err}
	}
	return nil
}

func (d *Daemon) missingNames() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for n := range d.missing {
		names = append(names, n)
	}
	return names
}
