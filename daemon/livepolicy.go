package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

// A livePolicy is the policy in force; it is replaced as a whole.
type livePolicy struct {
	atomic.Pointer[policy.Policy]
	turn sync.Mutex // held while it is replaced
}

func (l *livePolicy) For(tenant string) (*policy.Profile, error) { return l.Load().For(tenant) }
func (l *livePolicy) Credential(name string) *policy.Credential  { return l.Load().Credential(name) }
func (l *livePolicy) CredentialUses() map[string][]policy.CredentialUse {
	return l.Load().CredentialUses()
}
func (l *livePolicy) Explain(tenant string) ([]policy.Grant, error) { return l.Load().Explain(tenant) }
func (l *livePolicy) MayAct(c policy.Caller, tenant string) bool    { return l.Load().MayAct(c, tenant) }
func (l *livePolicy) MayAdmin(c policy.Caller) bool                 { return l.Load().MayAdmin(c) }
func (l *livePolicy) MayConnect(c policy.Caller) bool               { return l.Load().MayConnect(c) }

// ReloadPolicy reads the policy again and puts it in force, all or nothing: one
// that cannot be used leaves the old one in force. What the new one no longer
// grants is cut, what it grants as before goes on. The preview's certificate is
// read again, too. caller is who asked; nil is
// a signal.
func (d *Daemon) ReloadPolicy(ctx context.Context, caller any) (*api.PolicyReload, error) {
	d.policy.turn.Lock()
	defer d.policy.turn.Unlock()
	if d.cfg.LoadPolicy == nil {
		return nil, &api.Error{Code: api.CodeUnsupported, Message: "the policy in force is built in, and has no file to be read again", Hint: "start the daemon with --policy FILE"}
	}
	p, err := d.cfg.LoadPolicy()
	if err != nil {
		d.log.Error("the policy was not reloaded; the old one stays in force", "policy", d.cfg.PolicyName, "error", err)
		_, rerr := d.record(ctx, audit.Record{Kind: audit.KindAdmin, Caller: caller, Fields: map[string]any{"event": "policy_refused", "file": d.cfg.PolicyName, "error": clip(err.Error(), 2000)}})
		return nil, errors.Join(policyFault(err), rerr)
	}
	if _, err := d.record(ctx, audit.Record{Kind: audit.KindAdmin, Caller: caller, Fields: map[string]any{"event": "policy", "file": d.cfg.PolicyName}}); err != nil {
		return nil, err
	}
	d.policy.Store(p)
	r := &api.PolicyReload{File: d.cfg.PolicyName}
	// What was begun under the old one is held against the new one.
	r.Egress, err = d.egress.again(ctx)
	r.Runs = d.endRuns()
	r.Jails = d.endJails(ctx)
	d.backends.retire()
	// What was kept for calls belongs to the old one's grants.
	d.pool.Forget("", nil)
	if d.net != nil {
		// Certificates are renewed more often than policies change.
		if renewErr := d.net.RenewPreviewTLS(ctx); renewErr != nil {
			d.log.Error("the preview's certificate was not renewed; the old one stays", "error", renewErr)
			err = errors.Join(err, renewErr)
		}
	}
	d.log.Info("the policy was reloaded", "policy", d.cfg.PolicyName, "tenants", r.Egress, "runs_ended", r.Runs, "jails_ended", r.Jails)
	return r, err
}

// policyFault is the answer to a policy that cannot be used.
func policyFault(err error) error {
	e := &api.Error{Code: api.CodeInvalidRequest, Field: "policy", Message: "the policy cannot be used, and the old one stays in force: " + err.Error()}
	var fault *policy.ParseError
	if errors.As(err, &fault) && fault.Line > 0 {
		e.Position = &api.Position{File: fault.File, Line: fault.Line, Column: fault.Column}
	}
	return e
}

// errPolicy is why a run ends that a new policy does not grant.
var errPolicy = errors.New("a new policy does not grant it")

// endRuns ends runs in isolates that the policy in force does not grant.
func (d *Daemon) endRuns() (ended int) {
	for _, r := range d.runs.running() {
		if !d.mayGoOn(r) {
			r.cancel(errPolicy)
			ended++
		}
	}
	return ended
}

// mayGoOn says whether the policy in force grants what a run is; one in a jail
// ends with that.
func (d *Daemon) mayGoOn(r *run) bool {
	r.mu.Lock()
	environment, language := r.record.Environment, r.record.Language
	r.mu.Unlock()
	if environment != policy.Isolate {
		return true
	}
	profile, err := d.policy.For(r.tenant)
	return err == nil && profile.Isolate != nil && slices.Contains(profile.Isolate.Languages, language)
}

// mayHaveJail and mayPublish are asked once more when there is a jail or a
// published port: the policy may have been replaced since it was begun.
func (d *Daemon) mayHaveJail(tenant string) bool {
	profile, err := d.policy.For(tenant)
	return err == nil && profile.Jail != nil
}

func (d *Daemon) mayPublish(tenant string) bool {
	profile, err := d.policy.For(tenant)
	return err == nil && profile.Jail != nil && profile.Jail.Preview
}

// endJails ends the jails of tenants who may have none any more, and withdraws
// ports that may not be published any more. The jails' ends take a moment, and
// nobody waits for them: their way out is cut already.
func (d *Daemon) endJails(ctx context.Context) (ended int) {
	for _, j := range d.tenants.all() {
		if !d.mayHaveJail(j.tenant) {
			ended++
			if d.begin() {
				go func() {
					defer d.work.Done()
					j.end("policy")
				}()
			}
			continue
		}
		if d.mayPublish(j.tenant) || d.net == nil {
			continue
		}
		for _, p := range d.net.Ports(j.tenant) {
			if err := d.net.Unexpose(ctx, j.tenant, p.Port); err != nil && !errors.Is(err, netproxy.ErrNotExposed) {
				d.log.Error("a published port could not be withdrawn", "tenant", j.tenant, "port", p.Port, "error", err)
			}
		}
	}
	return ended
}

func (d *Daemon) handlePolicyReload(q *request) error {
	r, err := d.ReloadPolicy(q.ctx(), q.caller())
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, r)
}

// handlePolicyCheck says what is wrong with a policy; nothing of it is put in
// force.
func (d *Daemon) handlePolicyCheck(q *request) error {
	var req api.PolicyCheckRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	out := api.PolicyCheck{OK: true, Problems: []api.PolicyProblem{}}
	name := req.Name
	if name == "" {
		name = "policy"
	}
	_, err := policy.Parse(clip(name, 255), []byte(req.Policy))
	var faults policy.ParseErrors
	if errors.As(err, &faults) {
		out.OK = false
		for _, f := range faults {
			out.Problems = append(out.Problems, api.PolicyProblem{Line: f.Line, Column: f.Column, Field: f.Field, Message: f.Message})
		}
	} else if err != nil {
		return fmt.Errorf("check a policy: %w", err)
	}
	return q.reply(http.StatusOK, out)
}
