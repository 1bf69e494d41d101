package daemon

import (
	"errors"
	"net/http"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/internal/kernel"
	"sandboxd/jail"
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

func (d *Daemon) handleStatus(q *request) error {
	active, total := d.runs.counts()
	s := api.Status{Version: d.cfg.Version, Started: d.started.UTC(), State: d.lifeState(), Mode: d.cfg.Mode, Pid: pid, Policy: d.cfg.PolicyName,
		Limits: "enforced", Jails: len(d.tenants.all()), Runs: api.RunCounts{Running: active, Total: total, Execs: d.metrics.execCount()}, Errors: d.metrics.errorCounts()}
	if d.cfg.BestEffort {
		s.Limits = "best-effort"
	}
	for _, k := range d.cfg.Sockets {
		s.Sockets = append(s.Sockets, k.Path)
	}
	if d.cfg.Preview != nil {
		s.Preview = d.cfg.Preview.Addr().String()
	}
	if d.pool != nil {
		p := d.pool.Stats()
		s.Isolates = api.IsolatePool{Workers: p.Workers, Running: p.Running, Runs: p.Runs, Killed: p.Killed}
	}
	last := d.audit.Last()
	s.Audit = api.AuditState{Seq: last.Seq, Hash: last.Hash}
	if err := d.audit.Healthy(); err != nil {
		s.Audit.Error = err.Error()
	}
	d.mu.Lock()
	s.Startup = append([]api.StartupStep(nil), d.startup...)
	s.Warnings = append([]string(nil), d.warnings...)
	d.mu.Unlock()
	return q.reply(http.StatusOK, s)
}

func (d *Daemon) handleDoctor(q *request) error {
	exe := d.cfg.Exe
	if exe == "" {
		exe = "/proc/self/exe"
	}
	doc := api.Doctor{OK: true, Checks: []api.Check{}}
	// One probe at a time: each makes processes and namespaces.
	d.probing.Lock()
	checks := kernel.Probe(q.ctx(), exe).Checks()
	d.probing.Unlock()
	for _, c := range checks {
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
		doc.Checks = append(doc.Checks, c)
	}
	return q.reply(http.StatusOK, doc)
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
