package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"sync"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

// keepEgress is how many tenants without work keep their rules in the proxy, so
// that the next run need not set them again.
const keepEgress = 512

// egressUse knows which tenants' rules the proxy holds.
type egressUse struct {
	d  *Daemon
	mu sync.Mutex
	m  map[string]*egressTenant // guarded by mu
}

type egressTenant struct {
	refs int // guarded by egressUse.mu

	mu   sync.Mutex
	set  bool // guarded by mu
	gone bool // guarded by mu: removed from the table
}

func newEgressUse(d *Daemon) *egressUse { return &egressUse{d: d, m: map[string]*egressTenant{}} }

// use sees to it that the proxy has the rules that the tenant has by the policy
// in force, until release.
func (u *egressUse) use(ctx context.Context, tenant string) (release func(), err error) {
	for {
		e := u.ref(tenant)
		retry, err := e.install(func() error { return u.set(ctx, tenant) })
		if err == nil && !retry {
			return sync.OnceFunc(func() { u.unref(tenant, e) }), nil
		}
		u.unref(tenant, e)
		if err != nil {
			return nil, err
		}
	}
}

// set gives the proxy the tenant's rules, which are none when the policy does
// not name the tenant.
func (u *egressUse) set(ctx context.Context, tenant string) error {
	var rules []policy.Rule
	var limits policy.EgressLimits
	if profile, err := u.d.policy.For(tenant); err == nil {
		rules, limits = profile.Egress, profile.EgressLimits
	}
	return u.d.net.SetRules(ctx, tenant, rules, limits)
}

// again gives the proxy the rules of every tenant that it knows anew, after the
// policy has changed, and returns how many those are. Who comes meanwhile finds
// the new policy.
func (u *egressUse) again(ctx context.Context) (n int, err error) {
	u.mu.Lock()
	known := maps.Clone(u.m)
	u.mu.Unlock()
	var errs []error
	for tenant, e := range known {
		e.mu.Lock()
		if e.set && !e.gone {
			n++
			if err := u.set(ctx, tenant); err != nil { // and so nothing is granted
				errs = append(errs, fmt.Errorf("tenant %s: %w", tenant, err))
			}
		}
		e.mu.Unlock()
	}
	return n, errors.Join(errs...)
}

func (e *egressTenant) install(set func() error) (retry bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return true, nil
	}
	if e.set {
		return false, nil
	}
	if err := set(); err != nil {
		return false, err
	}
	e.set = true
	return false, nil
}

func (u *egressUse) ref(tenant string) *egressTenant {
	u.mu.Lock()
	defer u.mu.Unlock()
	e, ok := u.m[tenant]
	if !ok {
		e = &egressTenant{}
		u.m[tenant] = e
	}
	e.refs++
	return e
}

func (u *egressUse) unref(tenant string, e *egressTenant) {
	u.mu.Lock()
	defer u.mu.Unlock()
	e.refs--
	if e.refs > 0 || len(u.m) <= keepEgress || u.m[tenant] != e {
		return
	}
	if u.d.begin() {
		go u.remove(tenant, e)
	}
}

// remove takes a tenant without work out of the proxy.
func (u *egressUse) remove(tenant string, e *egressTenant) {
	defer u.d.work.Done()
	e.mu.Lock()
	defer e.mu.Unlock()
	u.mu.Lock()
	idle := e.refs == 0 && u.m[tenant] == e
	u.mu.Unlock()
	if !idle {
		return
	}
	// While e.mu is held, whoever wants the tenant waits in install.
	if err := u.d.net.RemoveTenant(u.d.base, tenant); err != nil {
		u.d.log.Warn("a tenant's egress rules could not be removed", "tenant", tenant, "error", err)
	}
	e.gone = true
	u.mu.Lock()
	delete(u.m, tenant)
	u.mu.Unlock()
}

// onDecisions records decisions of the proxy before they take effect, and ties
// them to what caused them. The errors are those of the decisions, in their
// order; nil: all are on record and may be carried out.
func (d *Daemon) onDecisions(ctx context.Context, list []netproxy.Decision) []error {
	errs := make([]error, len(list))
	records, of := make([]audit.Record, 0, len(list)), make([]int, 0, len(list))
	bad := false
	for i := range list {
		dec := &list[i]
		over, err := d.spend(dec)
		if err != nil {
			d.log.Error("a credential's use could not be counted, so it is not used", "credential", dec.Credential, "error", err)
			errs[i], bad = err, true
			continue
		}
		if over != nil { // on record as refused
			errs[i], bad = over, true
		}
		records = append(records, audit.Record{Time: dec.Time, Kind: audit.KindEgress, Tenant: dec.Tenant, RunID: dec.RunID, Fields: dec})
		of = append(of, i)
	}
	n, err := d.audit.AppendAll(context.WithoutCancel(ctx), records)
	if err != nil {
		d.metrics.auditFailures.Inc()
		d.log.Error("decisions of the egress proxy could not be recorded, so they are not carried out", "error", err)
		for _, i := range of[n:] {
			errs[i], bad = &auditError{err}, true
		}
	}
	for _, i := range of[:n] {
		d.decided(&list[i])
	}
	if !bad {
		return nil
	}
	return errs
}

// decided counts a decision that is on record.
func (d *Daemon) decided(dec *netproxy.Decision) {
	d.metrics.decided(dec)
	if dec.Origin == "jail" {
		if j := d.tenants.find(dec.Tenant); j != nil {
			j.observe(dec)
		}
	}
}

// spend charges a credential's budget. A request that has none left is put on
// record as refused.
func (d *Daemon) spend(dec *netproxy.Decision) (over *netproxy.BudgetError, err error) {
	c := d.policy.Credential(dec.Credential)
	if c == nil || c.Budget == nil || dec.Kind != "request" || !dec.Allowed {
		return nil, nil
	}
	if dec.Phase == "finished" {
		d.spending.add(dec.Credential, dec.Tenant, dec.BytesOut+dec.BytesIn, c.Budget)
		return nil, nil
	}
	err = d.spending.charge(dec.Credential, dec.Tenant, c.Budget)
	if errors.As(err, &over) {
		dec.Allowed, dec.Reason = false, "budget_"+over.Budget
		return over, nil
	}
	return nil, err
}

// observe adds a decision to the jail and to the commands that run in it.
func (j *tenantJail) observe(dec *netproxy.Decision) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var running []*execution
	for _, e := range j.execs {
		if e.running() {
			running = append(running, e)
		}
	}
	if dec.Phase == "finished" {
		j.bytesOut += dec.BytesOut
		j.bytesIn += dec.BytesIn
		for _, e := range running {
			e.traffic(dec.BytesOut, dec.BytesIn)
		}
		return
	}
	if dec.Allowed {
		if dec.Kind != "dns" {
			j.requests++
			for _, e := range running {
				e.requested()
			}
		}
		return
	}
	what := clip(dec.Host, 255)
	if dec.Port != 0 && dec.Kind != "dns" {
		what = net.JoinHostPort(what, strconv.Itoa(int(dec.Port)))
	}
	denial := api.Denial{Kind: "network", What: what, Rule: dec.Reason, Time: dec.Time, Scope: "jail"}
	if len(running) == 1 {
		denial.Scope = "run"
	}
	j.denials = addDenial(j.denials, denial)
	if len(j.denials) > keepDenied {
		j.denials = j.denials[len(j.denials)-keepDenied:]
	}
	for _, e := range running {
		e.denied(denial)
	}
}

// onEgressState puts on record that the proxy has died, does not start, or
// serves again.
func (d *Daemon) onEgressState(s netproxy.State) {
	fields := map[string]any{"event": "proxy", "running": s.Running, "pid": s.Pid, "restarts": s.Restarts, "problem": s.Problem}
	// Whether it can be written or not, the proxy is started again; record has
	// logged and counted a failure.
	_, _ = d.record(d.base, audit.Record{Kind: audit.KindEgress, Fields: fields})
}

// egressState is how the proxy fares; nil without one.
func (d *Daemon) egressState() *api.Egress {
	if d.net == nil {
		return nil
	}
	s := d.net.State()
	e := &api.Egress{Running: s.Running, Pid: s.Pid, Since: s.Since.UTC(), Restarts: s.Restarts, Problem: clip(s.Problem, 500)}
	if p := d.net.Packages(); p != nil {
		e.Packages = &api.Packages{Answers: p.Entries, Bytes: policy.Size(p.Bytes), Limit: policy.Size(p.Max)}
	}
	return e
}
