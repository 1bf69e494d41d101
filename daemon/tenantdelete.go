package daemon

import (
	"errors"
	"fmt"
	"maps"

	"sandboxd/daemon/audit"
)

// errTenantDeleted is why a run ends whose tenant is deleted.
var errTenantDeleted = errors.New("its tenant is deleted")

// handleTenantDelete ends and deletes all that there is of a tenant but what is in
// the audit log, and what it has spent of budgets. Policy still grants what it
// grants: a request that comes later finds the tenant as one that never was.
func (d *Daemon) handleTenantDelete(q *request) error {
	tenant := q.tenant
	if !d.begin() {
		return errStopping
	}
	defer d.work.Done()
	record := func(event string, failed error) error {
		fields := map[string]any{"event": event, "tenant": tenant}
		if failed != nil {
			fields["error"] = clip(failed.Error(), 500)
		}
		_, err := d.record(q.ctx(), audit.Record{Kind: audit.KindAdmin, Tenant: tenant, Caller: q.caller(), Fields: fields})
		return err
	}
	if err := record("tenant_delete", nil); err != nil {
		return err
	}
	if err := d.deleteTenant(q, tenant); err != nil {
		return errors.Join(err, record("tenant_delete_failed", err))
	}
	if err := record("tenant_deleted", nil); err != nil {
		return err
	}
	return q.noContent()
}

// deleteTenant goes on after errors: what is gone is gone.
func (d *Daemon) deleteTenant(q *request, tenant string) error {
	for _, r := range d.runs.running() {
		if r.tenant != tenant {
			continue
		}
		r.cancel(errTenantDeleted)
		select {
		case <-r.done:
		case <-q.ctx().Done():
			return fmt.Errorf("wait for the tenant's runs to end: %w", q.ctx().Err())
		}
	}
	var errs []error
	if err := d.need(partJails); err != nil {
		errs = append(errs, err) // files of an earlier jail may be there
	} else {
		errs = append(errs, d.tenants.remove(q.ctx(), tenant))
	}
	d.functions.forgetTenant(tenant)
	errs = append(errs, d.data.RemoveTenant(q.ctx(), tenant), d.recordings.RemoveTenant(tenant))
	d.runs.forgetTenant(tenant)
	d.pool.Forget(tenant, nil)
	return errors.Join(errs...)
}

// forgetTenant drops all that is known of a tenant's functions, so that none of it
// is written again.
func (t *functionTable) forgetTenant(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, e := range maps.Clone(t.byKey) {
		if k.tenant == tenant {
			t.drop(e)
		}
	}
	delete(t.uses, tenant)
	delete(t.dirty, tenant)
}

// forgetTenant removes the records of a tenant's runs that have ended.
func (g *registry) forgetTenant(tenant string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var ended []*run
	for _, r := range g.runs {
		if r.tenant == tenant && r.ended() {
			ended = append(ended, r)
		}
	}
	for _, r := range ended {
		g.remove(r)
	}
}
