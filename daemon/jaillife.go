package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/jail"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

// A tenantJail is one jail and what the daemon knows of it.
//
// What counts as activity: a request for the jail that does not fail, while it is
// under way; a command that is not in the background; bytes of a published port.
// Without any for idle the jail is frozen; the next thaws it.
type tenantJail struct {
	d         *Daemon
	tenant    string
	grant     *policy.JailGrant
	template  string
	request   api.JailRequest // as it was made; its limits with mu and updates held
	limits    policy.Limits   // guarded by mu once it is made
	held      atomic.Pointer[policy.Limits]
	ephemeral bool
	writable  bool // its root
	created   time.Time
	deadline  time.Time // guarded by mu once it is made
	jail      *jail.Jail
	link      *netproxy.Link // nil without egress
	noEgress  func()
	life      *time.Timer
	gone      chan struct{} // closed when nothing is left of it

	// state is held while it is frozen or thawed. Order: state, then mu, then that of
	// an execution.
	state sync.Mutex

	updates sync.Mutex // one change of limits at a time

	mu       sync.Mutex
	active   int                   // guarded by mu
	lease    *peer                 // guarded by mu: whose end is this jail's, nil if nobody's
	frozen   bool                  // guarded by mu; written with state held
	ending   bool                  // guarded by mu
	idle     *time.Timer           // guarded by mu
	used     time.Time             // guarded by mu: when a request that did not fail last ended
	idleAt   time.Time             // guarded by mu
	execs    map[string]*execution // guarded by mu
	order    []string              // guarded by mu: ids of execs, oldest first
	denials  []api.Denial          // guarded by mu
	bytesOut int64                 // guarded by mu
	bytesIn  int64                 // guarded by mu
	requests int64                 // guarded by mu
}

var errEnding = errors.New("the jail is ending")

// createJail makes the tenant's jail with its way out.
func (d *Daemon) createJail(ctx context.Context, tenant string, caller policy.Caller, req *api.JailRequest) (*tenantJail, error) {
	if req == nil {
		req = &api.JailRequest{}
	}
	profile, limits, err := d.planJail(tenant, req)
	if err != nil {
		return nil, err
	}
	j := &tenantJail{d: d, tenant: tenant, grant: profile.Jail, template: profile.Jail.Template, request: *req, limits: limits, ephemeral: req.Workspace == "ephemeral",
		created: time.Now().UTC(), gone: make(chan struct{}), execs: map[string]*execution{}, noEgress: func() {}}
	if req.Template != "" {
		j.template = req.Template
	}
	j.held.Store(&limits)
	j.writable = profile.Jail.Root == policy.RootWritable && j.template != "host"
	j.deadline, j.used = j.created.Add(limits.Lifetime.Std()), j.created
	if _, err := d.record(ctx, audit.Record{Kind: audit.KindJail, Tenant: tenant, Caller: caller, Fields: map[string]any{
		"event": "create", "template": j.template, "writable": j.writable, "limits": limits, "ephemeral": j.ephemeral}}); err != nil {
		return nil, err
	}
	// The jail outlives the request that made it.
	if err := j.build(context.WithoutCancel(ctx), profile); err != nil {
		j.cutOff()
		_, _ = d.record(ctx, audit.Record{Kind: audit.KindJail, Tenant: tenant, Fields: map[string]any{"event": "failed", "error": clip(err.Error(), 500)}})
		return nil, fmt.Errorf("create jail %s: %w", tenant, err)
	}
	d.metrics.jailsCreated.Inc()
	j.life = time.AfterFunc(time.Until(j.deadline), func() { j.end("lifetime") })
	return j, nil
}

// planJail holds a request for a jail against the policy.
func (d *Daemon) planJail(tenant string, req *api.JailRequest) (*policy.Profile, policy.Limits, error) {
	profile, err := d.policy.For(tenant)
	if err != nil {
		return nil, policy.Limits{}, err
	}
	if _, err := policy.Choose(policy.Step{Language: "shell", Environment: policy.Jail}, profile); err != nil {
		return nil, policy.Limits{}, err
	}
	if err := d.need(partJails); err != nil {
		return nil, policy.Limits{}, err
	}
	if len(profile.Egress) > 0 {
		if err := d.need(partEgress); err != nil {
			return nil, policy.Limits{}, err
		}
	}
	if req.Template != "" && !profile.Jail.MayUse(req.Template) {
		return nil, policy.Limits{}, &api.Error{Code: api.CodeDenied, Field: "template", Message: "the policy does not grant this template",
			Allowed: strings.Join(append([]string{profile.Jail.Template}, profile.Jail.Templates...), ", ")}
	}
	if err := checkEnv("env", req.Env); err != nil {
		return nil, policy.Limits{}, err
	}
	limits, err := lower(profile.Jail.Limits, req.Limits)
	if err == nil {
		limits, err = lowerOne(limits, policy.Limits{Idle: req.IdleTimeout}, "idle_timeout")
	}
	if err == nil {
		limits, err = lowerOne(limits, policy.Limits{Lifetime: req.MaxLifetime}, "max_lifetime")
	}
	return profile, limits, err
}

// lowerOne is Lower for a field that has a name of its own in the request.
func lowerOne(l, req policy.Limits, field string) (policy.Limits, error) {
	out, err := l.Lower(req, "limits")
	var f *policy.FieldError
	if errors.As(err, &f) {
		f.Field = field
	}
	return out, err
}

// build makes the jail with its way out, of one that is kept ready if there is
// one.
func (j *tenantJail) build(ctx context.Context, profile *policy.Profile) error {
	d := j.d
	spec := jail.Spec{Tenant: j.tenant, Template: j.template, WritableRoot: j.writable, ResetRoot: j.request.ResetRoot, Ephemeral: j.ephemeral,
		Env: map[string]string{}, CABundle: d.roots, Limits: ofJail(&j.limits)}
	joined := func() error { return nil }
	if d.net != nil {
		release, err := d.egress.use(ctx, j.tenant)
		if err != nil {
			return err
		}
		j.noEgress = release
	}
	if spec.Spare = d.jails.TakeSpare(); spec.Spare != nil {
		if s, ok := spec.Spare.Network.(*spareLink); ok {
			j.link = s.link
			s.bind(ctx, j.tenant)
			joined = s.wait
		}
	} else if d.net != nil {
		var err error
		if j.link, err = d.net.Attach(ctx, j.tenant); err != nil {
			return err
		}
		spec.NetNS, spec.Resolvers, spec.CABundle = j.link.NetNS, j.link.Resolvers, d.bundle(j.link)
	}
	if j.link != nil {
		maps.Copy(spec.Env, j.link.Env)
		maps.Copy(spec.Env, d.net.Placeholders(j.tenant, profile.Egress))
	}
	maps.Copy(spec.Env, profile.Jail.Env)
	maps.Copy(spec.Env, j.request.Env)
	made, err := d.jails.Create(ctx, spec)
	// Nobody runs anything in it before the way out is the tenant's.
	bound := joined()
	if err == nil && bound == nil && j.link != nil && j.limits.Bandwidth != 0 {
		bound = j.setRate(j.limits.Bandwidth)
	}
	if err != nil || bound == nil {
		j.jail = made
		return errors.Join(err, bound)
	}
	return errors.Join(bound, made.Destroy(ctx, "not_started"))
}

// cutOff takes the way out down.
func (j *tenantJail) cutOff() {
	if j.link != nil {
		for _, p := range j.d.net.Ports(j.tenant) {
			if err := j.d.net.Unexpose(j.d.base, j.tenant, p.Port); err != nil && !errors.Is(err, netproxy.ErrNotExposed) {
				j.d.log.Warn("a published port could not be withdrawn", "tenant", j.tenant, "port", p.Port, "error", err)
			}
		}
		if err := j.link.Close(); err != nil {
			j.d.log.Error("a jail's network could not be taken down", "tenant", j.tenant, "error", err)
		}
	}
	j.noEgress()
}

// use marks the start of a request for the jail, and wakes it.
func (j *tenantJail) use(ctx context.Context) error {
	j.mu.Lock()
	if j.ending {
		j.mu.Unlock()
		return errEnding
	}
	j.active++
	if j.idle != nil {
		j.idle.Stop()
	}
	j.idleAt = time.Time{}
	j.mu.Unlock()
	if err := j.thaw(ctx); err != nil {
		j.releaseAfter(err)
		return err
	}
	return nil
}

// release marks the end of a request.
func (j *tenantJail) release() { j.releaseAfter(nil) }

// releaseAfter marks the end of a request; one that failed was no activity: a jail
// that it woke is frozen again when it would have been.
func (j *tenantJail) releaseAfter(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		j.used = time.Now()
	}
	j.active--
	if j.active > 0 || j.ending {
		return
	}
	j.idleAt = j.used.Add(j.limits.Idle.Std())
	wait := max(time.Until(j.idleAt), 0)
	if j.idle == nil {
		j.idle = time.AfterFunc(wait, j.idled)
	} else {
		j.idle.Reset(wait)
	}
}

// idled freezes a jail that nobody has used.
func (j *tenantJail) idled() {
	if err := j.freeze(j.d.base, false); err != nil && !errors.Is(err, errEnding) {
		j.d.log.Error("an idle jail could not be frozen; it ends", "tenant", j.tenant, "error", err)
		j.end("idle")
	}
}

// freeze stops the jail's processes; unless forced only when nobody uses it.
func (j *tenantJail) freeze(ctx context.Context, force bool) error {
	j.state.Lock()
	defer j.state.Unlock()
	j.mu.Lock()
	skip := j.frozen || (j.active > 0 && !force)
	ending := j.ending
	if !skip && !ending {
		j.frozen = true
	}
	j.mu.Unlock()
	if ending {
		return errEnding
	}
	if skip {
		return nil
	}
	if err := j.jail.Freeze(ctx); err != nil {
		j.mu.Lock()
		j.frozen = false
		j.mu.Unlock()
		return err
	}
	go j.jail.Reclaim() // until it is thawed, or ends
	return nil
}

func (j *tenantJail) thaw(ctx context.Context) error {
	j.state.Lock()
	defer j.state.Unlock()
	j.mu.Lock()
	frozen := j.frozen
	j.mu.Unlock()
	if !frozen {
		return nil
	}
	if err := j.jail.Thaw(ctx); err != nil {
		return err
	}
	j.mu.Lock()
	j.frozen = false
	j.mu.Unlock()
	return nil
}

// wait does nothing for a jail that lives, and waits for one that ends.
func (j *tenantJail) wait(ctx context.Context) error {
	j.mu.Lock()
	ending := j.ending
	j.mu.Unlock()
	if !ending {
		return nil
	}
	return j.awaitGone(ctx)
}

func (j *tenantJail) awaitGone(ctx context.Context) error {
	select {
	case <-j.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end is destroy for timers.
func (j *tenantJail) end(cause string) {
	if err := j.destroy(context.WithoutCancel(j.d.base), cause); err != nil {
		j.d.log.Error("a jail could not be ended", "tenant", j.tenant, "cause", cause, "error", err)
	}
}

// destroy ends the jail; when it returns without an error nothing is left.
func (j *tenantJail) destroy(ctx context.Context, cause string) error {
	j.mu.Lock()
	j.ending = true
	j.mu.Unlock()
	if err := j.jail.Destroy(ctx, cause); err != nil {
		return err
	}
	return j.awaitGone(ctx)
}

// clean takes down what the daemon holds for a jail that has ended.
func (j *tenantJail) clean() {
	j.mu.Lock()
	j.ending = true
	if j.idle != nil {
		j.idle.Stop()
	}
	var execs []*execution
	for _, e := range j.execs {
		execs = append(execs, e)
	}
	fields := map[string]any{"event": "end", "requests": j.requests, "bytes_out": j.bytesOut, "bytes_in": j.bytesIn, "denied": len(j.denials)}
	j.mu.Unlock()
	j.life.Stop()
	j.cutOff()
	for _, e := range execs {
		<-e.done
	}
	info := j.jail.Info()
	fields["cause"], fields["usage"], fields["lived"] = info.Cause, jailUsage(&info.Usage), policy.Duration(time.Since(j.created))
	// The jail is gone either way; record has logged and counted a failure.
	_, _ = j.d.record(j.d.base, audit.Record{Kind: audit.KindJail, Tenant: j.tenant, Fields: fields})
}

// dialJail connects the preview to a port of a jail: activity that wakes it, if
// something listens there.
func (d *Daemon) dialJail(ctx context.Context, tenant string, port uint16) (f *os.File, err error) {
	j, err := d.tenants.existing(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer func() { j.releaseAfter(err) }()
	return j.jail.Dial(ctx, port)
}

// previewActive is told that bytes pass on a connection of the preview's.
func (d *Daemon) previewActive(ctx context.Context, tenant string) error {
	j, err := d.tenants.existing(ctx, tenant)
	if err == nil {
		j.release()
	}
	return err
}
