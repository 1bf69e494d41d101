package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/internal/kernel"
	"sandboxd/jail"
	"sandboxd/policy"
)

func (d *Daemon) handlePolicy(q *request) error {
	profile, err := d.policy.For(q.tenant)
	if err != nil {
		return err
	}
	grants, err := d.policy.Explain(q.tenant)
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, api.PolicyView{Tenant: q.tenant, Profile: profile, Grants: grants})
}

func (d *Daemon) lifeState() string {
	if d.stopping.Load() {
		return "stopping"
	}
	return "ready"
}

// handleStatus tells administrators everything, and others what concerns the
// tenants that they may act for.
func (d *Daemon) handleStatus(q *request) error {
	s := api.Status{Version: d.cfg.Version, Started: d.started.UTC(), State: d.lifeState(), Mode: d.cfg.Mode, Limits: "enforced", Sockets: []string{}}
	if d.cfg.BestEffort {
		s.Limits = "best-effort"
	}
	if d.policy.MayAdmin(q.caller()) {
		d.wholeStatus(&s)
	} else {
		d.statusFor(q.caller(), &s)
	}
	return q.reply(http.StatusOK, s)
}

// statusFor counts what is of the caller's tenants.
func (d *Daemon) statusFor(c policy.Caller, s *api.Status) {
	for _, j := range d.tenants.all() {
		if d.policy.MayAct(c, j.tenant) {
			s.Jails++
		}
	}
	for _, r := range d.runs.list(2*keepRuns, func(r *run) bool { return d.policy.MayAct(c, r.tenant) }) {
		s.Runs.Total++
		if !r.ended() {
			s.Runs.Running++
		}
	}
	if d.audit.Healthy() != nil {
		s.Audit.Error = "the audit log cannot be written; nothing new runs"
	}
}

func (d *Daemon) wholeStatus(s *api.Status) {
	active, total := d.runs.counts()
	s.Pid, s.Policy, s.Jails, s.Errors = pid, d.cfg.PolicyName, len(d.tenants.all()), d.metrics.errorCounts()
	s.Runs = api.RunCounts{Running: active, Total: total, Execs: d.metrics.execCount()}
	for _, k := range d.cfg.Sockets {
		s.Sockets = append(s.Sockets, k.Path)
	}
	if d.cfg.Preview != nil {
		s.Preview = d.cfg.Preview.Addr().String()
	}
	if d.pool != nil {
		p := d.pool.Stats()
		s.Isolates = &api.IsolatePool{Workers: p.Workers, Tenants: p.TenantWorkers, Running: p.Running, Runs: p.Runs, Killed: p.Killed, Preparing: p.Preparing}
	}
	s.Egress, s.Spares = d.egressState(), d.spares()
	last := d.audit.Last()
	s.Audit = api.AuditState{Seq: last.Seq, Hash: last.Hash}
	if err := d.audit.Healthy(); err != nil {
		s.Audit.Error = err.Error()
	}
	d.mu.Lock()
	s.Startup = append([]api.StartupStep(nil), d.startup...)
	s.Warnings = append([]string(nil), d.warnings...)
	d.mu.Unlock()
}

// diskCheck says what holds jails to their disk limits.
func (d *Daemon) diskCheck() api.Check {
	kind, why := d.jails.Disk()
	c := api.Check{Name: "disk quota", Status: string(kernel.OK), Found: kind, Needed: "project quotas, or images"}
	switch kind {
	case jail.DiskProject:
		c.Found = "project quotas of the state's file system"
	case jail.DiskImage:
		c.Found = "an image for each tenant, which costs a start some milliseconds (" + why + ")"
	default:
		c.Status, c.Found = string(kernel.Warn), "none: "+why
		c.Consequence = "a tenant can fill the state's disk"
		c.Remedy = "put the state on ext4 (made with -O project,quota) or xfs, mounted with prjquota; or start the daemon with --disk image"
	}
	return c
}

// templateCheck tries out whether jails can have imported root file systems.
func (d *Daemon) templateCheck() api.Check {
	c := api.Check{Name: "templates", Status: string(kernel.OK), Found: "layers can be mounted with each jail's ids", Needed: "idmapped mounts of the state's file system"}
	if err := d.jails.ProbeTemplates(); err != nil {
		c.Status, c.Found = string(kernel.Warn), "layers cannot be mounted with a jail's ids: "+err.Error()
		c.Consequence = "only jails of the host's own system can be made"
		c.Remedy = "put the state on a file system with idmapped mounts: ext4, xfs or btrfs"
	}
	return c
}

func (d *Daemon) handleDoctor(q *request) error {
	doc := api.Doctor{OK: true, Checks: []api.Check{}}
	for _, c := range d.kernelChecks(q.ctx()) {
		doc.Checks = append(doc.Checks, api.Check{Name: c.Name, Status: string(c.Status), Found: c.Found, Needed: c.Needed, Consequence: c.Consequence, Remedy: c.Remedy})
		doc.OK = doc.OK && c.Status != kernel.Missing
	}
	for _, part := range []string{partIsolates, partJails, partEgress} {
		c := api.Check{Name: part, Status: string(kernel.OK), Found: "available", Needed: "available"}
		if err := d.need(part); err != nil {
			c.Status, c.Found = string(kernel.Missing), errors.Unwrap(err).Error()
			c.Consequence = "requests that need them are answered \"unsupported\""
			var lacks *jail.UnsupportedError
			if errors.As(err, &lacks) {
				c.Remedy = lacks.Remedy
			}
			doc.OK = false
		}
		if s := d.egressState(); part == partEgress && s != nil && !s.Running {
			c.Status, c.Found = string(kernel.Missing), "the egress proxy is not running: "+s.Problem
			c.Consequence, c.Remedy = "nothing passes until it is", "it is started again by itself; the daemon's log says more"
			doc.OK = false
		} else if part == partEgress && s != nil && s.Restarts > 0 {
			c.Found = fmt.Sprintf("available; the proxy process was replaced %d times (%s)", s.Restarts, s.Problem)
		}
		doc.Checks = append(doc.Checks, c)
	}
	if d.jails != nil {
		doc.Checks = append(doc.Checks, d.diskCheck(), d.templateCheck())
	}
	return q.reply(http.StatusOK, doc)
}

const (
	// doctorKeeps is how long what was found of the kernel is told again:
	// anybody may ask, and the trials make processes and namespaces.
	doctorKeeps = 10 * time.Second
	// doctorTime bounds the trials.
	doctorTime = 30 * time.Second
)

// A diagnosis is what was found of the kernel, and when.
type diagnosis struct {
	mu     sync.Mutex // held during the trials: one at a time
	checks []kernel.Check
	at     time.Time
}

func (d *Daemon) kernelChecks(ctx context.Context) []kernel.Check {
	exe := d.cfg.Exe
	if exe == "" {
		exe = "/proc/self/exe"
	}
	d.diagnosis.mu.Lock()
	defer d.diagnosis.mu.Unlock()
	if d.diagnosis.at.IsZero() || time.Since(d.diagnosis.at) > doctorKeeps {
		// Others get the answer too: who asked first does not end the trials.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doctorTime)
		defer cancel()
		d.diagnosis.checks, d.diagnosis.at = kernel.Probe(ctx, exe).Checks(), time.Now()
	}
	return d.diagnosis.checks
}

func (d *Daemon) handleVerify(q *request) error {
	summary, err := audit.Verify(d.state("audit"))
	verdict := api.AuditVerdict{OK: err == nil, Records: summary.Records, Files: summary.Files, Last: summary.Last}
	var corrupt *audit.CorruptError
	if errors.As(err, &corrupt) {
		verdict.Problem = &api.AuditProblem{File: corrupt.File, Line: corrupt.Line, Kind: corrupt.Kind, Message: corrupt.Detail}
	} else if err != nil {
		return err
	}
	return q.reply(http.StatusOK, verdict)
}

func (d *Daemon) handleOpenAPI(q *request) error {
	doc, err := api.OpenAPI(d.cfg.Version)
	if err != nil {
		return err
	}
	q.w.Header().Set("Content-Type", "application/json")
	_, _ = q.w.Write(doc) // a caller that went away is no error of ours
	return nil
}

func (d *Daemon) handleHealth(q *request) error {
	if d.stopping.Load() {
		return q.reply(http.StatusServiceUnavailable, api.Health{Status: "stopping"})
	}
	return q.reply(http.StatusOK, api.Health{Status: "ok"})
}

func (d *Daemon) handleMetrics(q *request) error {
	d.metrics.handler.ServeHTTP(q.w, q.http)
	return nil
}
