package daemon

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/jail"
	"sandboxd/policy"
)

// bounds are the limits that hold now, without mu: commands ask with their own
// lock held, which comes after it.
func (j *tenantJail) bounds() policy.Limits { return *j.held.Load() }

// ends is when the jail ends at the latest.
func (j *tenantJail) ends() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.deadline
}

// ofJail are the limits that package jail holds.
func ofJail(l *policy.Limits) jail.Limits {
	return jail.Limits{Memory: l.Memory.Bytes(), CPUs: l.CPUs, Pids: l.Pids, OpenFiles: l.OpenFiles, Disk: l.Disk.Bytes(), Inodes: int64(l.Inodes),
		IOBytes: l.IOBytes.Bytes(), IOOps: int64(l.IOOps)}
}

// setRate holds the jail's way out to a bandwidth.
func (j *tenantJail) setRate(bandwidth policy.Size) error {
	if j.link == nil {
		return nil // it has none
	}
	err := j.link.SetRate(bandwidth.Bytes())
	if err != nil && j.d.cfg.BestEffort {
		j.d.log.Warn("a jail's bandwidth is not limited", "tenant", j.tenant, "error", err)
		return nil
	}
	if err != nil {
		return &api.Error{Code: api.CodeUnsupported, Field: "limits.bandwidth", Message: "this host cannot limit a jail's bandwidth: " + err.Error(), Hint: "it needs the kernel's sch_tbf"}
	}
	return nil
}

// handleJailUpdate changes what can change while the jail lives.
func (d *Daemon) handleJailUpdate(q *request) (err error) {
	var req api.JailRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	j, err := d.tenants.existing(q.ctx(), q.tenant)
	if err != nil {
		return err
	}
	defer func() { j.releaseAfter(err) }()
	if err := j.needsNew(&req); err != nil {
		return err
	}
	if _, _, err := d.planJail(q.tenant, &req); err != nil {
		return err
	}
	if err := j.update(q.ctx(), &req, q.caller()); err != nil {
		return err
	}
	switch req.Lease {
	case "connection":
		d.tenants.lease(j, q.peer)
	case "none":
		j.mu.Lock()
		j.lease = nil
		j.mu.Unlock()
	}
	return q.reply(http.StatusOK, j.describe())
}

// needsNew refuses what only a new jail can have, by name.
func (j *tenantJail) needsNew(req *api.JailRequest) error {
	workspace := "persistent"
	if j.ephemeral {
		workspace = "ephemeral"
	}
	for _, f := range []struct {
		name    string
		changes bool
	}{
		{"template", req.Template != "" && req.Template != j.template},
		{"workspace", req.Workspace != "" && req.Workspace != workspace},
		{"reset_root", req.ResetRoot},
		{"env", req.Env != nil && !maps.Equal(req.Env, j.request.Env)},
	} {
		if f.changes {
			return &api.Error{Code: api.CodeConflict, Field: f.name, Message: f.name + " does not change while the jail lives; nothing was changed",
				Allowed: "limits, idle_timeout, max_lifetime, lease", Hint: "end the jail and make it anew"}
		}
	}
	return nil
}

// update applies the limits that req names, which the policy grants, all or none.
func (j *tenantJail) update(ctx context.Context, req *api.JailRequest, caller policy.Caller) error {
	j.updates.Lock()
	defer j.updates.Unlock()
	old := j.bounds()
	limits := old
	if req.Limits != nil {
		limits = limits.With(*req.Limits)
	}
	limits = limits.With(policy.Limits{Idle: req.IdleTimeout, Lifetime: req.MaxLifetime})
	deadline := j.created.Add(limits.Lifetime.Std())
	if limits.Lifetime != old.Lifetime && time.Until(deadline) < time.Second {
		e := api.Invalid("max_lifetime", fmt.Sprintf("is %v, and the jail lives for %v already", limits.Lifetime, time.Since(j.created).Round(time.Second)))
		e.Hint = "to end it now: DELETE …/jail"
		return e
	}
	if _, err := j.d.record(ctx, audit.Record{Kind: audit.KindJail, Tenant: j.tenant, Caller: caller, Fields: map[string]any{
		"event": "update", "limits": limits.Changed(old), "before": old}}); err != nil {
		return err
	}
	// What has begun comes to its end, whoever waits for it.
	if err := j.hold(context.WithoutCancel(ctx), &old, &limits); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.limits, j.deadline = limits, deadline
	j.held.Store(&limits)
	j.request.Limits, j.request.IdleTimeout, j.request.MaxLifetime = &limits, limits.Idle, limits.Lifetime
	if !j.ending && limits.Lifetime != old.Lifetime {
		j.life.Reset(time.Until(deadline))
	}
	return nil
}

// hold makes the kernel hold the new limits in place of the old.
func (j *tenantJail) hold(ctx context.Context, old, limits *policy.Limits) error {
	if limits.Bandwidth != old.Bandwidth {
		if err := j.setRate(limits.Bandwidth); err != nil {
			return err
		}
	}
	err := j.jail.Update(ctx, ofJail(limits))
	if err != nil && limits.Bandwidth != old.Bandwidth {
		if back := j.setRate(old.Bandwidth); back != nil {
			j.d.log.Error("a bandwidth could not be taken back", "tenant", j.tenant, "error", back)
		}
	}
	return err
}
