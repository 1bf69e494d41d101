package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/policy"
)

// A plan is a run that passed every check.
type plan struct {
	request     *api.RunRequest
	profile     *policy.Profile
	environment string
	limits      policy.Limits
	modules     map[string]string
	main        string
	bindings    map[string]grant // isolate: by the name that the code sees
	fetch       bool
	// deterministic is nil where the run is not; record says that a replay must
	// be possible.
	deterministic *api.Deterministic
	record        bool
	function      *deployed      // nil unless a deployed function is called
	ceiling       *policy.Limits // of the deployment
}

// handleRun is POST /v1/tenants/{tenant}/run.
func (d *Daemon) handleRun(q *request) error {
	var req api.RunRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	modules, main, err := checkRun(&req)
	if err != nil {
		return err
	}
	hash := ""
	if req.RunID != "" {
		text, err := json.Marshal(&req)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		sum := sha256.Sum256(text)
		hash = hex.EncodeToString(sum[:])
	}
	r := d.newRun(q, &req, hash, codeHash(&req, modules))
	return d.startRun(q, r, func() (*plan, error) { return d.planRun(q.tenant, &req, modules, main) })
}

// startRun registers a run, plans and starts it, and answers.
func (d *Daemon) startRun(q *request, r *run, plan func() (*plan, error)) error {
	if !d.begin() {
		return errStopping
	}
	ctx, cancel := context.WithCancelCause(d.base)
	r.cancel = cancel
	if old := d.runs.add(r); old != nil {
		cancel(nil)
		d.work.Done()
		return d.joinRun(q, r, old)
	}
	planned := d.policy.Load()
	p, err := plan()
	if err == nil {
		r.mu.Lock()
		r.record.Environment, r.record.Deterministic = p.environment, p.deterministic
		r.mu.Unlock()
		if d.policy.Load() != planned && !d.mayGoOn(r) {
			err = errPolicy // it came too late for endRuns to see it
			cancel(err)
		}
	}
	if err != nil {
		d.refuse(ctx, r, err)
		return d.answerRun(q, r)
	}
	isolated := p.environment == api.EnvironmentIsolate
	if isolated {
		// An isolate's run ends with the connection that asked for it.
		stop := context.AfterFunc(q.ctx(), func() { cancel(context.Canceled) })
		defer stop()
	}
	if isolated && !q.wantsStream() {
		// Nothing is to be done here until the run's end: no other goroutine
		// has to be woken for it, nor this one by it.
		d.execute(ctx, r, p)
	} else {
		go d.execute(ctx, r, p)
	}
	return d.answerRun(q, r)
}

// newRun makes a run that is not registered yet. hash is that of all that was
// asked for, when the caller gave the id.
func (d *Daemon) newRun(q *request, req *api.RunRequest, hash, codeSHA string) *run {
	id := req.RunID
	if id == "" {
		id = newID("run-")
	}
	r := &run{id: id, kind: audit.KindRun, request: hash, tenant: q.tenant, caller: q.caller(), done: make(chan struct{}), codeSHA: codeSHA, cancel: func(error) {}}
	r.record = api.Run{RunID: id, Tenant: q.tenant, Language: req.Language, Status: api.StatusRunning, Phase: "not_started",
		CodeSHA256: r.codeSHA, Started: time.Now().UTC()}
	return r
}

// joinRun follows or returns the run that has the id already.
func (d *Daemon) joinRun(q *request, r, old *run) error {
	if old.request != r.request {
		return &api.Error{Code: api.CodeConflict, Field: "run_id", Message: fmt.Sprintf("run %.130q exists and was asked for with other code, input or options", r.id), Hint: "use a new run_id"}
	}
	old.mu.Lock()
	trimmed := old.trimmed
	old.mu.Unlock()
	if trimmed {
		return &api.Error{Code: api.CodeGone, Field: "run_id", Message: "the run has run, and its result is no longer kept", Hint: "the rest of its record is at /v1/runs/{run}"}
	}
	return d.answerRun(q, old)
}

// codeText is what is kept of the code, as it was sent: the code itself, or all
// modules.
func codeText(req *api.RunRequest, modules map[string]string) []byte {
	if req.Modules == nil {
		return []byte(req.Code)
	}
	if req.Language == "wasm" {
		modules = req.Modules // binaries are no JSON
	}
	// encoding/json sorts the keys, so equal modules give equal bytes.
	text, _ := json.Marshal(map[string]any{"main": req.Main, "modules": modules})
	return text
}

func codeHash(req *api.RunRequest, modules map[string]string) string {
	sum := sha256.Sum256(codeText(req, modules))
	return hex.EncodeToString(sum[:])
}

// checkRun checks what the types cannot say, and returns the code as modules.
func checkRun(req *api.RunRequest) (map[string]string, string, error) {
	if err := checkID("run_id", req.RunID); err != nil {
		return nil, "", err
	}
	if err := checkEnv("env", req.Env); err != nil {
		return nil, "", err
	}
	if bytes.Equal(req.Input, []byte("null")) {
		req.Input = nil
	}
	switch {
	case req.Code != "" && req.Modules != nil:
		return nil, "", api.Invalid("modules", "give code or modules, not both")
	case req.Modules == nil && req.Code == "":
		return nil, "", api.Invalid("code", "is missing; give code, or modules and main")
	case req.Modules == nil && req.Main != "":
		return nil, "", api.Invalid("main", "names one of modules, and there are none")
	case req.Modules == nil:
		return decoded(req.Language, map[string]string{fileName[req.Language]: req.Code}, fileName[req.Language])
	}
	for name := range req.Modules {
		if !validModule(name) {
			return nil, "", api.Invalid(fmt.Sprintf("modules[%.80q]", name), "is not a relative file name such as lib/util.ts")
		}
	}
	if _, ok := req.Modules[req.Main]; !ok {
		return nil, "", api.Invalid("main", "must name one of modules")
	}
	return decoded(req.Language, req.Modules, req.Main)
}

// decoded is the code as it runs: binaries of wasm travel in base64.
func decoded(language string, modules map[string]string, main string) (map[string]string, string, error) {
	if language != "wasm" {
		return modules, main, nil
	}
	out := make(map[string]string, len(modules))
	for name, text := range modules {
		rest, marked := strings.CutPrefix(text, "base64:")
		if !marked && name != main && path.Ext(name) != ".wasm" {
			out[name] = text
			continue
		}
		b, err := base64.StdEncoding.DecodeString(rest)
		if err != nil {
			field := fmt.Sprintf("modules[%.80q]", name)
			if len(modules) == 1 && name == fileName[language] {
				field = "code"
			}
			return nil, "", api.Invalid(field, "is not base64 (with padding), which a Wasm module has to be in JSON: "+err.Error())
		}
		out[name] = string(b)
	}
	return out, main, nil
}

var fileName = map[string]string{"js": "main.js", "ts": "main.ts", "python": "main.py", "shell": "main.sh", "wasm": "main.wasm"}

func validModule(name string) bool {
	if name == "" || len(name) > 1024 || path.IsAbs(name) || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../") {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' })
}

// checkEnv checks names and values of an environment.
func checkEnv(field string, env map[string]string) error {
	for name, value := range env {
		sub := fmt.Sprintf("%s[%.80q]", field, name)
		if name == "" || strings.ContainsAny(name, "=\x00") || len(name) > 256 {
			return api.Invalid(sub, "is not a name of an environment variable")
		}
		if strings.Contains(value, "\x00") {
			return api.Invalid(sub, "must not hold a NUL byte")
		}
		if len(value) > 128<<10 {
			return api.Invalid(sub, "is longer than 131072 bytes")
		}
	}
	return nil
}

// planRun holds the request against the policy.
func (d *Daemon) planRun(tenant string, req *api.RunRequest, modules map[string]string, main string) (*plan, error) {
	p := &plan{request: req, modules: modules, main: main}
	return p, d.choose(tenant, p)
}

// choose completes a plan by the tenant's policy as it is now.
func (d *Daemon) choose(tenant string, p *plan) (err error) {
	if p.profile, err = d.policy.For(tenant); err != nil {
		return err
	}
	req := p.request
	p.environment, err = policy.Choose(policy.Step{Language: req.Language, Needs: req.Needs, Environment: req.Environment}, p.profile)
	if err != nil {
		return err
	}
	if p.environment == policy.Isolate {
		return d.planIsolate(p)
	}
	return d.planJailRun(p)
}

// lower applies the request's limits to what is granted.
func lower(granted policy.Limits, req *policy.Limits) (policy.Limits, error) {
	if req == nil {
		return granted, nil
	}
	return granted.Lower(*req, "limits")
}

// execute runs the plan and completes the record.
func (d *Daemon) execute(ctx context.Context, r *run, p *plan) {
	if p.environment == policy.Isolate {
		d.executeIsolate(ctx, r, p)
		return
	}
	err := d.recordStart(ctx, r, p)
	if err == nil {
		err = d.keepCode(ctx, p)
	}
	if err != nil {
		d.refuse(ctx, r, err)
		return
	}
	d.executeInJail(ctx, r, p)
}

// recordStart writes that the run starts, and tells those who follow.
func (d *Daemon) recordStart(ctx context.Context, r *run, p *plan) error {
	start := runStart{Phase: "start", Environment: p.environment, Language: p.request.Language, CodeSHA256: r.codeSHA}
	if p.function != nil {
		start.Function = p.function.name
	}
	if _, err := d.record(ctx, audit.Record{Kind: audit.KindRun, Tenant: r.tenant, RunID: r.id, Caller: r.caller, Fields: start}); err != nil {
		return err
	}
	r.events.append(api.Event{Type: api.EventStarted, RunID: r.id})
	return nil
}

// keepCode puts the code beside the records; that of a deployment once.
func (d *Daemon) keepCode(ctx context.Context, p *plan) error {
	if p.function != nil && p.function.kept.Load() {
		return nil
	}
	if _, err := d.audit.PutCode(ctx, codeText(p.request, p.modules)); err != nil {
		return &auditError{err}
	}
	if p.function != nil {
		p.function.kept.Store(true)
	}
	return nil
}

// refuse ends a run that did not start.
func (d *Daemon) refuse(ctx context.Context, r *run, err error) {
	e := toAPI(err)
	if e.Code == api.CodeInternal {
		d.log.Error("a run could not start", "run", r.id, "tenant", r.tenant, "error", err)
	}
	status := api.StatusRefused
	if ctx.Err() != nil {
		// It was canceled before it had begun.
		status, e = api.StatusKilled, canceled(ctx)
		e.Message += " before the run started"
	}
	r.mu.Lock()
	r.record.Status, r.record.Error = status, e
	r.mu.Unlock()
	d.finish(ctx, r)
	if e.Retryable {
		d.runs.forget(r)
	}
}

// errAsked is why a run ends that somebody asked to end.
var errAsked = errors.New("canceled by a request")

// canceled says why a run's context is done.
func canceled(ctx context.Context) *api.Error {
	e := &api.Error{Code: api.CodeCanceled, Message: "the caller's connection ended"}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errShutdown):
		e.Message, e.Hint = "the daemon was stopped", "look at phase before running it again"
	case errors.Is(cause, errPolicy):
		e.Code, e.Message = api.CodeDenied, "a new policy does not grant this run"
	case errors.Is(cause, errTenantDeleted):
		e.Message = "its tenant was deleted"
	case errors.Is(cause, errAsked):
		e.Message = "a request canceled it"
	}
	return e
}

// finish writes the run's record and tells all who wait.
func (d *Daemon) finish(ctx context.Context, r *run) {
	defer d.work.Done()
	r.mu.Lock()
	r.record.Ended = time.Now().UTC()
	if r.record.Usage.Wall.Used == nil {
		r.record.Usage.Wall.Used = ptr(policy.Duration(r.record.Ended.Sub(r.record.Started)))
	}
	rec := r.record
	r.mu.Unlock()
	receipt, err := d.record(ctx, audit.Record{Kind: r.kind, Tenant: r.tenant, RunID: r.id, Caller: r.caller, Fields: runFields(&rec)})
	r.mu.Lock()
	r.record.Receipt = receipt
	if err != nil && r.record.Error == nil {
		r.record.Error = toAPI(err)
	}
	rec = r.record
	r.mu.Unlock()
	d.metrics.ran(&rec)
	r.events.append(api.Event{Type: api.EventResult, RunID: r.id, Run: &rec})
	close(r.done)
	d.runs.finished(r)
	r.cancel(nil)
}

// maxAudited is how many denials and calls of one run its line in the audit log
// lists; the line says how many there were.
const maxAudited = 100

// A runStart is the audit log's line of a run that is about to start.
type runStart struct {
	Phase       string `json:"phase"`
	Environment string `json:"environment"`
	Language    string `json:"language"`
	CodeSHA256  string `json:"code_sha256"`
	Function    string `json:"function,omitempty"`
}

// A runEnd is what the audit log keeps of a run: not its output and result.
type runEnd struct {
	Phase       string           `json:"phase"`
	Status      string           `json:"status"`
	Environment string           `json:"environment"`
	Language    string           `json:"language"`
	CodeSHA256  string           `json:"code_sha256"`
	Started     time.Time        `json:"started"`
	Usage       *api.Usage       `json:"usage"`
	Error       *runError        `json:"error,omitempty"`
	ExitCode    *int             `json:"exit_code,omitempty"`
	Signal      string           `json:"signal,omitempty"`
	Function    string           `json:"function,omitempty"`
	Denials     []api.Denial     `json:"denials,omitempty"`
	Denied      int              `json:"denied,omitempty"`
	Calls       []api.CallRecord `json:"calls,omitempty"`
	Called      int              `json:"called,omitempty"`
	Recorded    *bool            `json:"recorded,omitempty"`
	ReplayOf    string           `json:"replay_of,omitempty"`
	Identical   *bool            `json:"identical,omitempty"`
}

type runError struct {
	Code    string `json:"code"`
	Limit   string `json:"limit"`
	Message string `json:"message"`
}

func runFields(r *api.Run) *runEnd {
	f := &runEnd{Phase: r.Phase, Status: r.Status, Environment: r.Environment, Language: r.Language, CodeSHA256: r.CodeSHA256,
		Started: r.Started, Usage: &r.Usage, ExitCode: r.ExitCode, Signal: r.Signal, Function: r.Function,
		Denials: r.Denials[:min(len(r.Denials), maxAudited)], Denied: len(r.Denials),
		Calls: r.Calls[:min(len(r.Calls), maxAudited)], Called: len(r.Calls)}
	if r.Error != nil {
		f.Error = &runError{r.Error.Code, r.Error.Limit, clip(r.Error.Message, 500)}
	}
	if r.Replay != nil {
		f.ReplayOf, f.Identical = r.Replay.Of, &r.Replay.Identical
	}
	if r.Recording != nil {
		f.Recorded = &r.Recording.Complete
	}
	return f
}

// answerRun streams or waits for the run and answers with it.
func (d *Daemon) answerRun(q *request, r *run) error {
	if q.wantsStream() {
		return d.stream(q, r.events.all(q.ctx(), 0, true))
	}
	select {
	case <-r.done:
	case <-q.ctx().Done():
		return q.ctx().Err()
	}
	rec := r.snapshot()
	return q.reply(runStatus(&rec), rec)
}

// runStatus is the HTTP status of a run's answer: what ran is 200 however it
// ended; what was refused has the status of its error.
func runStatus(r *api.Run) int {
	if r.Status == api.StatusRefused && r.Error != nil {
		return r.Error.Status()
	}
	return http.StatusOK
}

// clip shortens hostile text at a rune's border.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

func ptr[T any](v T) *T { return &v }
