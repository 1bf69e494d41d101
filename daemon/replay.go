package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/daemon/recording"
	"sandboxd/isolate"
	"sandboxd/policy"
)

// replayWall is how many times as long as the recorded run a replay may take: on
// a busy machine it must not end elsewhere.
const replayWall = 4

// A replayPlan is a replay that passed every check.
type replayPlan struct {
	recording *recording.Recording
	request   isolate.Request
	limits    policy.Limits
	changed   bool   // the code is not the recorded one
	code      []byte // what was given in its place
}

// handleReplay is POST /v1/runs/{run}/replay.
func (d *Daemon) handleReplay(q *request) error {
	var req api.ReplayRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	rec, err := d.findRecording(q)
	if err != nil {
		return err
	}
	p, err := d.planReplay(rec, &req)
	if err != nil {
		return err
	}
	r := d.newReplay(q, p)
	if !d.begin() {
		return errStopping
	}
	ctx, cancel := context.WithCancelCause(d.base)
	r.cancel = cancel
	d.runs.add(r) // its id is new
	_, err = d.record(ctx, audit.Record{Kind: audit.KindReplay, Tenant: r.tenant, RunID: r.id, Caller: r.caller,
		Fields: map[string]any{"phase": "start", "replay_of": rec.RunID, "language": rec.Request.Language, "code_sha256": r.codeSHA}})
	if err != nil {
		d.refuse(ctx, r, err)
		return d.answerRun(q, r)
	}
	r.events.append(api.Event{Type: api.EventStarted, RunID: r.id})
	// As any run in an isolate it ends with the connection that asked for it.
	stop := context.AfterFunc(q.ctx(), func() { cancel(context.Canceled) })
	defer stop()
	go d.executeReplay(ctx, r, p)
	return d.answerRun(q, r)
}

// findRecording finds the recording of a run that the caller may see, or says
// why there is none.
func (d *Daemon) findRecording(q *request) (*recording.Recording, error) {
	id, only := q.path("run"), q.query("tenant")
	rec, err := d.recordings.Find(id, func(tenant string) bool {
		return (only == "" || only == tenant) && d.policy.MayAct(q.caller(), tenant)
	})
	switch {
	case errors.Is(err, recording.ErrAmbiguous):
		return nil, &api.Error{Code: api.CodeConflict, Field: "tenant", Message: fmt.Sprintf("several tenants have a recorded run %.130q", id), Hint: "say whose with ?tenant="}
	case errors.Is(err, recording.ErrGone):
		return nil, &api.Error{Code: api.CodeGone, Message: fmt.Sprintf("the recording of run %.130q is no longer kept", id), Hint: "isolate.recordings of the profile says how many are kept, and for how long"}
	case errors.Is(err, recording.ErrDamaged):
		d.log.Error("a recording cannot be read", "run", id, "error", err)
		return nil, &api.Error{Code: api.CodeGone, Message: fmt.Sprintf("the recording of run %.130q is damaged, as a power failure can leave it", id)}
	case errors.Is(err, recording.ErrNotFound):
		return nil, d.notRecorded(q)
	case err != nil:
		return nil, fmt.Errorf("replay %.130q: %w", id, err)
	case rec.Incomplete != "":
		return nil, &api.Error{Code: api.CodeConflict, Message: fmt.Sprintf("run %.130q cannot be replayed, because its recording is not complete: %s", id, rec.Incomplete)}
	}
	return rec, nil
}

// notRecorded says why a run has no recording.
func (d *Daemon) notRecorded(q *request) error {
	r, err := d.mayRun(q)
	if err != nil {
		return err
	}
	if !r.ended() {
		return &api.Error{Code: api.CodeConflict, Message: "the run has not ended yet", Retryable: true}
	}
	switch rec := r.snapshot(); {
	case rec.Replay != nil:
		return &api.Error{Code: api.CodeConflict, Message: fmt.Sprintf("this is itself a replay, of run %.130q; replay that one", rec.Replay.Of)}
	case rec.Recording != nil:
		return &api.Error{Code: api.CodeConflict, Message: "the run cannot be replayed: " + rec.Recording.Why}
	}
	return &api.Error{Code: api.CodeConflict, Message: "the run was not recorded", Hint: `ask for it with "record": true or "deterministic"; isolate.record of the profile can make it the rule`}
}

// planReplay holds a replay against what there is now: the engine must be the
// recorded one, and the policy must still allow what the run had.
func (d *Daemon) planReplay(rec *recording.Recording, req *api.ReplayRequest) (*replayPlan, error) {
	if err := d.need(partIsolates); err != nil {
		return nil, err
	}
	language := rec.Request.Language
	id, err := isolate.IdentityOf(language)
	if err != nil {
		return nil, err
	}
	if id != rec.Identity {
		return nil, &api.Error{Code: api.CodeConflict, Message: fmt.Sprintf("the run was recorded with another engine (%s, fuel version %s; here %s, fuel version %s): what a replay gave would say nothing of it",
			rec.Identity.Engine, rec.Identity.FuelVersion, id.Engine, id.FuelVersion), Hint: "replay it with the release of sandboxd that recorded it"}
	}
	profile, err := d.policy.For(rec.Tenant)
	if err != nil {
		return nil, err
	}
	if _, err := policy.Choose(policy.Step{Language: language, Environment: policy.Isolate}, profile); err != nil {
		return nil, err
	}
	p := &replayPlan{recording: rec, request: rec.Request}
	// Where it runs is for the policy of now to say.
	p.request.Strict = profile.Isolate.Isolation == policy.IsolationStrict
	l := &rec.Request.Limits
	p.limits, err = profile.Isolate.Limits.Lower(policy.Limits{Wall: policy.Duration(l.Wall), CPU: policy.Duration(l.CPU), Memory: policy.Size(l.Memory),
		Output: policy.Size(l.Output), Requests: l.Requests, Calls: l.Calls}, "limits")
	var field *policy.FieldError
	if errors.As(err, &field) {
		return nil, &api.Error{Code: api.CodeDenied, Field: field.Field, Message: "the recorded run had a higher limit than the policy grants now: " + field.Message, Allowed: field.Allowed}
	}
	if err != nil {
		return nil, err
	}
	if err := p.change(req); err != nil {
		return nil, err
	}
	p.request.Paced = true
	// How long it takes is no part of what is compared; what it can do is bounded
	// by its processor time, which is counted in work.
	p.request.Limits.Wall = min(replayWall*p.request.Limits.Wall, time.Hour)
	p.limits.Wall = policy.Duration(p.request.Limits.Wall)
	return p, nil
}

// change puts other code in place of the recorded one.
func (p *replayPlan) change(req *api.ReplayRequest) error {
	was := &p.recording.Request
	if req.Code == "" && req.Modules == nil && req.Main == "" {
		return p.request.Validate()
	}
	given := &api.RunRequest{Language: was.Language, Code: req.Code, Modules: req.Modules, Main: req.Main}
	modules, main, err := checkRun(given)
	if err != nil {
		return err
	}
	if req.Modules != nil {
		p.request.Modules, p.request.Main = modules, main
	} else {
		// In place of the entry; the other modules stay.
		p.request.Modules = maps.Clone(was.Modules)
		p.request.Modules[was.Main] = modules[main]
	}
	p.changed = p.request.Main != was.Main || !maps.Equal(p.request.Modules, was.Modules)
	p.code = codeText(given, modules)
	return p.request.Validate()
}

// newReplay is the run that a replay is.
func (d *Daemon) newReplay(q *request, p *replayPlan) *run {
	r := &run{id: newID("run-"), kind: audit.KindReplay, tenant: p.recording.Tenant, caller: q.caller(), done: make(chan struct{}), codeSHA: p.recording.CodeSHA256, cancel: func(error) {}}
	if p.changed {
		sum := sha256.Sum256(p.code)
		r.codeSHA = hex.EncodeToString(sum[:])
	}
	p.request.RunID = r.id
	r.record = api.Run{RunID: r.id, Tenant: r.tenant, Environment: api.EnvironmentIsolate, Language: p.request.Language, Status: api.StatusRunning,
		Phase: isolate.PhaseNotStarted, CodeSHA256: r.codeSHA, Started: time.Now().UTC(),
		Deterministic: &api.Deterministic{Seed: p.request.Seed, Clock: p.request.Clock},
		Replay:        &api.Replay{Of: p.recording.RunID, ChangedCode: p.changed, Note: p.recording.Outcome.Timed}}
	return r
}

// A replayHost answers a replay's calls out of the recording. It has nothing
// else: no data, no caller's tools, no way out.
type replayHost struct {
	*recording.Player
	run *run
	ctx context.Context // of the replay
}

var _ isolate.OrderHost = (*replayHost)(nil)

// Call implements isolate.Host. A call that the code dropped has its turn, too.
func (h *replayHost) Call(_ context.Context, c isolate.Call) (json.RawMessage, error) {
	began := time.Now()
	answer, err := h.Player.Call(h.ctx, c)
	rec := api.CallRecord{Binding: clip(c.Binding, 64), Method: clip(c.Method, 64), Status: "ok", Bytes: int64(len(answer)), Duration: policy.Duration(time.Since(began))}
	if err != nil {
		rec.Status = "error"
	} else if c.Binding == "fetch" {
		rec.Status = fetchStatus(answer)
	}
	if h.ctx.Err() == nil {
		h.run.called(rec)
	}
	return answer, err
}

// Answered implements isolate.OrderHost.
func (h *replayHost) Answered(nth int, _ json.RawMessage, _ error) { h.Player.Answered(nth) }

// Event implements isolate.Host.
func (h *replayHost) Event(e isolate.Event) { h.run.logged(e) }

// executeReplay runs the plan in the pool and compares.
func (d *Daemon) executeReplay(base context.Context, r *run, p *replayPlan) {
	if p.changed {
		if _, err := d.audit.PutCode(base, p.code); err != nil {
			d.refuse(base, r, &auditError{err})
			return
		}
	}
	ctx, cancel := context.WithCancelCause(base)
	defer cancel(nil)
	player := recording.NewPlayer(p.recording, cancel)
	result, err := d.pool.Run(ctx, &p.request, &replayHost{player, r, ctx})
	if err != nil {
		d.failIsolate(base, r, err)
		return
	}
	r.completed(base, result, isolateUsage(&result.Usage, &p.limits, 0, 0))
	if err := r.compare(p, player); err != nil {
		d.log.Error("a replay could not be compared", "run", r.id, "tenant", r.tenant, "error", err)
	}
	d.finish(base, r)
}

// compare completes the record of a replay with whether it came out the same.
func (r *run) compare(p *replayPlan, player *recording.Player) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	replay, recorded := *r.record.Replay, &p.recording.Outcome
	defer func() { r.record.Replay = &replay }()
	ended := player.Failed()
	var diverged *recording.DivergedError
	switch {
	case errors.As(ended, &diverged):
		replay.Divergence = &api.Divergence{Nth: diverged.Nth, Recorded: diverged.Recorded, Came: diverged.Came}
		r.record.Status, r.record.Result = api.StatusKilled, nil
		r.record.Error = &api.Error{Code: api.CodeConflict, Message: diverged.Error(), Hint: divergedHint(p.changed)}
	case errors.Is(ended, recording.ErrEnds) && recorded.Timed != "":
		r.record.Error = &api.Error{Code: api.CodeCanceled, Message: "the recording ends here: the recorded run waited for an answer when " + recorded.Timed}
	case errors.Is(ended, recording.ErrEnds):
		r.record.Status, r.record.Result = api.StatusKilled, nil
		r.record.Error = &api.Error{Code: api.CodeConflict, Message: "the replay diverged: it waits for an answer that the recorded run had no need of", Hint: divergedHint(p.changed)}
	}
	now, err := recording.OutcomeOf(&r.record)
	if err != nil {
		return err
	}
	if ended == nil && now.Timed != "" && recorded.Timed == "" {
		replay.Note = "the replay itself did not come to the end: " + now.Timed
	}
	if recorded.Timed != "" && errors.Is(ended, recording.ErrEnds) {
		now.Error = recorded.Error // the place is the same, and the reason cannot be
	}
	replay.Differs = recorded.Differs(&now)
	if diverged != nil {
		replay.Differs = append(replay.Differs, fmt.Sprintf("calls[%d]", diverged.Nth-1))
	} else if c := player.Missing(); c != nil {
		replay.Differs = append(replay.Differs, fmt.Sprintf("calls[%d]", c.Nth-1))
	}
	replay.Identical = len(replay.Differs) == 0 && recorded.Timed == ""
	return nil
}

func divergedHint(changed bool) string {
	if changed {
		return "other code can be replayed as long as it makes the recorded calls, with the same arguments and in the same order"
	}
	return "this is a fault of sandboxd: the same code, input and answers must make the same calls"
}
