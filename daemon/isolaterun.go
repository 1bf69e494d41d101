package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/isolate"
	"sandboxd/policy"
)

const (
	// maxConcurrentCalls is how many host calls of one run may be under way.
	maxConcurrentCalls = 16
	// maxResult is the largest result of a run, in bytes of JSON.
	maxResult = 8 << 20
)

// isolateLanguages are those that the pool has an engine for.
var isolateLanguages = []string{"js", "ts", "python", "wasm"}

// planIsolate decides what the run holds in an isolate.
func (d *Daemon) planIsolate(p *plan) error {
	if err := d.need(partIsolates); err != nil {
		return err
	}
	if lang := p.request.Language; !slices.Contains(isolateLanguages, lang) {
		return &api.Error{Code: api.CodeUnsupported, Field: "language", Message: fmt.Sprintf("%s in an isolate is not built in yet", lang),
			Allowed: strings.Join(isolateLanguages, ", ")}
	}
	var err error
	granted := p.profile.Isolate.Limits
	if p.ceiling != nil {
		granted = granted.AtMost(*p.ceiling)
	}
	if p.limits, err = lower(granted, p.request.Limits); err != nil {
		return err
	}
	if p.bindings, err = grants(p.profile.Isolate.Bindings, p.request.Bindings); err != nil {
		return err
	}
	if err := planRecord(p); err != nil {
		return err
	}
	if p.request.Outbound == nil {
		return nil
	}
	if err := checkOutbound(p.profile, p.request.Outbound.Allow); err != nil {
		return err
	}
	p.fetch = len(p.request.Outbound.Allow) > 0
	if p.fetch {
		return d.need(partEgress)
	}
	return nil
}

// checkOutbound refuses hosts that no rule of the policy grants.
func checkOutbound(p *policy.Profile, allow []string) error {
	for i, host := range allow {
		field := fmt.Sprintf("outbound.allow[%d]", i)
		suffix, wild := strings.CutPrefix(host, "*.")
		name, err := policy.CanonicalHost(suffix)
		if err != nil {
			return api.Invalid(field, err.Error())
		}
		if wild {
			name = "*." + name
		}
		allow[i] = name
		if !p.Isolate.Fetch {
			return &api.Error{Code: api.CodeDenied, Field: field, Message: "the policy grants isolates no outgoing requests", Hint: "an operator can set isolate.fetch of the profile"}
		}
		if !slices.ContainsFunc(p.Egress, func(r policy.Rule) bool { return covers(r.Host, name) }) {
			return &api.Error{Code: api.CodeDenied, Field: field, Message: fmt.Sprintf("the policy does not grant requests to %.255s", name),
				Allowed: egressHosts(p), Hint: "an operator can add an egress rule for the host"}
		}
	}
	return nil
}

func egressHosts(p *policy.Profile) string {
	var hosts []string
	for _, r := range p.Egress {
		hosts = append(hosts, r.Host)
	}
	slices.Sort(hosts)
	return strings.Join(slices.Compact(hosts), ", ")
}

// covers reports whether everything that host names is named by pattern. Both
// are exact names or "*.suffix".
func covers(pattern, host string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	if !wild {
		return pattern == host
	}
	return pattern == host || strings.HasSuffix(strings.TrimPrefix(host, "*"), suffix)
}

// executeIsolate runs the plan in the pool, which has the host put it on record
// when a worker has it.
func (d *Daemon) executeIsolate(ctx context.Context, r *run, p *plan) {
	h := &host{d: d, run: r, plan: p, ctx: ctx, release: func() {}}
	defer h.close()
	req := isolateRequest(r, p)
	answers, recorder := d.recorded(p, req, h)
	if recorder != nil {
		defer recorder.Close()
	}
	result, err := d.pool.Run(ctx, req, answers)
	// If it ended before a worker had it, it is put on record now.
	if err := h.Started(); err != nil {
		d.refuse(ctx, r, err)
		return
	}
	if err != nil {
		r.notRecorded(p, "the run came to no end of its own")
		d.failIsolate(ctx, r, err)
		return
	}
	h.settle()
	r.completed(ctx, result, isolateUsage(&result.Usage, &p.limits, h.bytesOut.Load(), h.bytesIn.Load()))
	d.keepRecording(r, p, recorder)
	d.finish(ctx, r)
}

// completed puts on record how the pool ended the run.
func (r *run) completed(ctx context.Context, result *isolate.Result, usage api.Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := &r.record
	rec.Phase, rec.Result, rec.Error = result.Phase, result.Value, fromRun(result.Error)
	rec.Status, rec.ExitCode = result.Status, result.ExitCode
	if result.Error != nil && result.Error.Kind == isolate.KindCanceled && ctx.Err() != nil {
		rec.Error = canceled(ctx) // the pool does not know why
	}
	if result.Error != nil && result.Error.Kind == isolate.KindRejected {
		rec.Status = api.StatusRefused
	}
	rec.Stdout, rec.Stderr = validText([]byte(r.stdout.String())), validText([]byte(r.stderr.String()))
	rec.Usage = usage
	if result.Error != nil && result.Error.Kind == isolate.KindLimit && len(rec.Denials) < keepDenied {
		rec.Denials = append(rec.Denials, api.Denial{Kind: "limit", What: result.Error.Limit, Rule: result.Error.Allowed, Time: time.Now().UTC(), Scope: "run"})
	}
}

// failIsolate ends a run that the pool could not run to its end.
func (d *Daemon) failIsolate(ctx context.Context, r *run, err error) {
	e := toAPI(err)
	if e.Code != api.CodeInternal || e.Retryable {
		d.refuse(ctx, r, err)
		return
	}
	d.log.Error("a run was lost", "run", r.id, "tenant", r.tenant, "error", err)
	r.mu.Lock()
	r.record.Status, r.record.Error, r.record.Phase = api.StatusKilled, e, isolate.PhaseEffectsPossible
	r.mu.Unlock()
	d.finish(ctx, r)
}

func isolateRequest(r *run, p *plan) *isolate.Request {
	req := &isolate.Request{Tenant: r.tenant, RunID: r.id, Language: p.request.Language, Modules: p.modules, Main: p.main,
		Args: p.request.Args, Input: p.request.Input, Env: p.request.Env, Fetch: p.fetch, Strict: p.profile.Isolate.Isolation == policy.IsolationStrict,
		Limits: isolate.Limits{
			Wall: p.limits.Wall.Std(), CPU: p.limits.CPU.Std(), Memory: p.limits.Memory.Bytes(), Output: p.limits.Output.Bytes(),
			Result: maxResult, Calls: p.limits.Calls, Requests: p.limits.Requests, Concurrency: maxConcurrentCalls,
		}}
	if p.function != nil && p.deterministic == nil {
		// A deterministic call is a run like any other, which can be replayed.
		req.Function, req.Language, req.Modules, req.Main = p.function.code, "", nil, ""
	}
	for name, g := range p.bindings {
		req.Bindings = append(req.Bindings, isolate.Binding{Name: name, Methods: g.methods})
	}
	slices.SortFunc(req.Bindings, func(a, b isolate.Binding) int { return strings.Compare(a.Name, b.Name) })
	if det := p.deterministic; det != nil {
		req.Seed, req.Clock = det.Seed, det.Clock
	}
	return req
}

func isolateUsage(u *isolate.Usage, l *policy.Limits, out, in int64) api.Usage {
	return api.Usage{
		Wall: api.UsedDuration(u.Wall, l.Wall.Std()), CPU: api.UsedDuration(u.CPU, l.CPU.Std()),
		MemoryPeak: api.UsedCount(u.MemoryPeak, l.Memory.Bytes()), Requests: api.UsedCount(int64(u.Requests), int64(l.Requests)),
		Output: api.UsedCount(u.Output, l.Output.Bytes()), BytesOut: api.UsedCount(out, 0), BytesIn: api.UsedCount(in, 0),
	}
}

// logged puts a line of output on record.
func (r *run) logged(e isolate.Event) {
	if e.Kind == api.EventStdout || e.Kind == api.EventStderr {
		r.wrote(e)
		return
	}
	entry := api.LogEntry{Time: e.Time, Level: e.Level, Message: e.Message, Data: validJSON(e.Data)}
	r.mu.Lock()
	room := len(r.record.Logs) < keepLines
	if room {
		r.record.Logs = append(r.record.Logs, entry)
	} else {
		r.record.Truncated = true
	}
	r.mu.Unlock()
	if room {
		r.events.append(api.Event{Type: api.EventLog, Time: e.Time, Log: &entry})
	}
}

// wrote puts a piece of plain output on record.
func (r *run) wrote(e isolate.Event) {
	r.mu.Lock()
	to := &r.stdout
	if e.Kind == api.EventStderr {
		to = &r.stderr
	}
	if to.Len()+len(e.Message) > maxAnswer {
		r.record.Truncated = true
	} else {
		to.WriteString(e.Message)
	}
	r.mu.Unlock()
	ev := api.Event{Type: e.Kind, Time: e.Time}
	ev.SetData([]byte(e.Message))
	r.events.append(ev)
}

// validJSON drops what a worker sends that is not JSON, which would make the
// whole answer unreadable.
func validJSON(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || !json.Valid(raw) {
		return nil
	}
	return raw
}
