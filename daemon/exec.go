package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/jail"
	"sandboxd/policy"
)

// keepExecs is how many commands a jail remembers.
const keepExecs = 256

// An execution is one command in a jail.
type execution struct {
	id         string
	j          *tenantJail
	run        *run // set when the command is a run's
	caller     policy.Caller
	argv       []string
	timeout    time.Duration
	output     int64
	background bool
	begun      time.Time
	ready      chan struct{} // closed when proc or failed is set
	done       chan struct{} // closed when the record is complete

	proc   *jail.Process // after ready
	failed error         // after ready

	mu       sync.Mutex
	denials  []api.Denial // guarded by mu
	bytesOut int64        // guarded by mu
	bytesIn  int64        // guarded by mu
	requests int64        // guarded by mu
	exit     *jail.Exit   // guarded by mu
	receipt  *api.Receipt // guarded by mu
}

func (e *execution) running() bool {
	select {
	case <-e.done:
		return false
	default:
		return true
	}
}

func (e *execution) traffic(out, in int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytesOut += out
	e.bytesIn += in
}

// requested counts a request that was let out.
func (e *execution) requested() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests++
}

func (e *execution) denied(d api.Denial) {
	e.mu.Lock()
	if len(e.denials) < keepDenied {
		e.denials = append(e.denials, d)
	}
	e.mu.Unlock()
	if e.run != nil {
		e.run.denied(d)
	}
}

// reserve takes the id; existing is the command that has it.
func (j *tenantJail) reserve(e *execution) (existing *execution, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ending {
		return nil, errEnding
	}
	if old, ok := j.execs[e.id]; ok {
		return old, nil
	}
	j.execs[e.id] = e
	j.order = append(j.order, e.id)
	for i := 0; i < len(j.order) && len(j.order) > keepExecs; {
		if old := j.execs[j.order[i]]; old.running() {
			i++
			continue
		}
		delete(j.execs, j.order[i])
		j.order = append(j.order[:i], j.order[i+1:]...)
	}
	return nil, nil
}

func (j *tenantJail) forgetExec(e *execution) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.execs, e.id)
	for i, id := range j.order {
		if id == e.id {
			j.order = append(j.order[:i], j.order[i+1:]...)
			return
		}
	}
}

func (j *tenantJail) execution(id string) (*execution, error) {
	j.mu.Lock()
	e, ok := j.execs[id]
	j.mu.Unlock()
	if ok {
		<-e.ready
		if e.failed == nil {
			return e, nil
		}
	}
	return nil, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("the jail has no command %.130q, or it is no longer kept", id)}
}

// startExec starts a command, or finds the one that has its id. The caller has
// acquired the jail and keeps it until startExec returns.
func (d *Daemon) startExec(ctx context.Context, j *tenantJail, e *execution, spec jail.ExecSpec) (*execution, error) {
	e.j, e.begun, e.ready, e.done = j, time.Now().UTC(), make(chan struct{}), make(chan struct{})
	spec.ID = e.id
	old, err := j.reserve(e)
	if err != nil {
		return nil, err
	}
	if old != nil {
		<-old.ready
		return old, old.failed
	}
	begun := d.begin()
	if !begun {
		err = errStopping
	}
	if err == nil && e.run == nil {
		_, err = d.record(ctx, audit.Record{Kind: audit.KindExec, Tenant: j.tenant, RunID: e.id, Caller: e.caller,
			Fields: map[string]any{"phase": "start", "argv": clipAll(e.argv), "background": e.background, "cwd": spec.Cwd}})
	}
	if err == nil {
		e.proc, err = j.jail.Exec(ctx, spec)
	}
	if err != nil {
		e.failed = err
		close(e.ready)
		close(e.done)
		j.forgetExec(e)
		if begun {
			d.work.Done()
		}
		if e.run == nil {
			_, _ = d.record(ctx, audit.Record{Kind: audit.KindExec, Tenant: j.tenant, RunID: e.id, Caller: e.caller,
				Fields: map[string]any{"phase": "not_started", "argv": clipAll(e.argv), "error": clip(err.Error(), 500)}})
		}
		return nil, err
	}
	close(e.ready)
	if !e.background {
		// A command in the foreground keeps the jail awake until it ends.
		j.mu.Lock()
		j.active++
		j.mu.Unlock()
	}
	d.metrics.execs.Inc()
	go d.watchExec(e)
	return e, nil
}

// watchExec completes the record of a command when it has ended.
func (d *Daemon) watchExec(e *execution) {
	defer d.work.Done()
	exit, err := e.proc.Wait(context.WithoutCancel(d.base))
	if err != nil {
		d.log.Error("the end of a command is not known", "tenant", e.j.tenant, "exec", e.id, "error", err)
		exit = jail.Exit{Code: -1, Cause: "unknown", Wall: time.Since(e.begun), Usage: jail.Usage{CPU: -1, MemoryNow: -1, MemoryPeak: -1, PidsPeak: -1}}
	}
	e.mu.Lock()
	e.exit = &exit
	e.mu.Unlock()
	var receipt *api.Receipt
	if e.run == nil {
		p := e.describe()
		// The command has ended either way; record has logged and counted a failure.
		receipt, _ = d.record(d.base, audit.Record{Kind: audit.KindExec, Tenant: e.j.tenant, RunID: e.id, Caller: e.caller, Fields: execFields(&p)})
	}
	e.mu.Lock()
	e.receipt = receipt
	e.mu.Unlock()
	close(e.done)
	if !e.background {
		e.j.release()
	}
}

func execFields(p *api.Process) map[string]any {
	f := map[string]any{"phase": "finished", "argv": clipAll(p.Argv), "usage": p.Usage, "started": p.Started}
	if p.ExitCode != nil {
		f["exit_code"] = *p.ExitCode
	}
	for name, value := range map[string]string{"signal": p.Signal, "cause": p.Cause} {
		if value != "" {
			f[name] = value
		}
	}
	for name, value := range map[string]bool{"timed_out": p.TimedOut, "oom_killed": p.OOMKilled, "truncated": p.Truncated, "background": p.Background} {
		if value {
			f[name] = true
		}
	}
	if n := len(p.Denials); n > 0 {
		f["denials"], f["denied"] = p.Denials[:min(n, maxAudited)], n
	}
	return f
}

// clipAll bounds what a command line takes in the audit log.
func clipAll(argv []string) []string {
	out := make([]string, 0, min(len(argv), 64))
	for i, a := range argv {
		if i == 63 {
			return append(out, fmt.Sprintf("… %d more", len(argv)-i))
		}
		out = append(out, clip(a, 1000))
	}
	return out
}

// describe is the command as the API shows it.
func (e *execution) describe() api.Process {
	info := e.proc.Info()
	e.mu.Lock()
	defer e.mu.Unlock()
	p := api.Process{ExecID: e.id, Tenant: e.j.tenant, Argv: e.argv, State: "running", Background: e.background, Pid: info.Pid,
		Started: info.Started, Timeout: policy.Duration(e.timeout), Denials: append([]api.Denial(nil), e.denials...), Receipt: e.receipt, Events: info.Events}
	if p.Started.IsZero() {
		p.Started = e.begun
	}
	p.Usage.BytesOut, p.Usage.BytesIn, p.Usage.Requests = api.UsedCount(e.bytesOut, 0), api.UsedCount(e.bytesIn, 0), api.UsedCount(e.requests, 0)
	p.Usage.Wall = api.UsedDuration(time.Since(p.Started), e.timeout)
	p.Usage.Output.Limit = e.output
	if e.exit == nil {
		return p
	}
	x := e.exit
	p.State, p.Signal, p.TimedOut, p.OOMKilled, p.Cause, p.Truncated = "exited", x.Signal, x.TimedOut, x.OOMKilled, x.Cause, x.Truncated
	if x.Code >= 0 && x.Signal == "" {
		p.ExitCode = ptr(x.Code)
	}
	p.Usage.Wall = api.UsedDuration(x.Wall, e.timeout)
	p.Usage.CPU.Used = knownDuration(x.Usage.CPU)
	p.Usage.MemoryPeak = api.CountUse{Used: known(x.Usage.MemoryPeak), Limit: e.j.limits.Memory.Bytes()}
	return p
}

// known is nil for the -1 of what this host cannot tell.
func known(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func knownDuration(t time.Duration) *policy.Duration {
	if t < 0 {
		return nil
	}
	return ptr(policy.Duration(t))
}

// handleExec is POST …/jail/exec.
func (d *Daemon) handleExec(q *request) error {
	var req api.ExecRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	if err := checkExec(&req); err != nil {
		return err
	}
	return d.exec(q, &req)
}

// exec runs a checked request and answers.
func (d *Daemon) exec(q *request, req *api.ExecRequest) error {
	// Before a jail is made for it: a refused request changes nothing.
	_, granted, err := d.planJail(q.tenant, &api.JailRequest{})
	if err == nil {
		_, err = lowerOne(granted, policy.Limits{Wall: req.Timeout}, "timeout")
	}
	if err != nil {
		return err
	}
	j, _, err := d.tenants.acquire(q.ctx(), q.tenant, q.caller(), nil)
	if err != nil {
		return err
	}
	defer j.release()
	e, spec, err := j.planExec(req, q.caller())
	if err != nil {
		return err
	}
	// The command outlives the connection.
	e, err = d.startExec(context.WithoutCancel(q.ctx()), j, e, spec)
	if err != nil {
		return nameProgram(err, req)
	}
	switch {
	case q.wantsStream():
		return d.stream(q, e.events(q.ctx(), 0, true))
	case req.Background:
		return q.reply(http.StatusAccepted, e.describe())
	default:
		return d.answerExec(q, e)
	}
}

// nameProgram adds to an error what was asked for.
func nameProgram(err error, req *api.ExecRequest) error {
	e := toAPI(err)
	if e.Code == api.CodeInternal {
		return err
	}
	switch e.Field {
	case "argv[0]":
		e.Used = clip(req.Argv[0], 200)
	case "cwd":
		e.Used = clip(req.Cwd, 200)
	}
	return e
}

// checkExec checks what the types cannot say.
func checkExec(req *api.ExecRequest) error {
	if err := checkID("exec_id", req.ExecID); err != nil {
		return err
	}
	switch {
	case req.Command != "" && len(req.Argv) > 0:
		return api.Invalid("command", "give argv or command, not both")
	case req.Command != "":
		req.Argv = []string{"/bin/sh", "-c", req.Command}
	case len(req.Argv) == 0:
		return api.Invalid("argv", "is missing; give argv or command")
	case req.Argv[0] == "":
		return api.Invalid("argv[0]", "is empty")
	}
	for i, arg := range req.Argv {
		if strings.Contains(arg, "\x00") {
			return api.Invalid(fmt.Sprintf("argv[%d]", i), "must not hold a NUL byte")
		}
	}
	if req.Cwd != "" && !path.IsAbs(req.Cwd) || strings.Contains(req.Cwd, "\x00") {
		return api.Invalid("cwd", "must be an absolute path")
	}
	if req.TTY != nil {
		return &api.Error{Code: api.CodeUnsupported, Field: "tty", Message: "terminals are not built in yet", Hint: "leave tty out; stdin works with \"stdin\": true"}
	}
	if req.User != "" {
		return &api.Error{Code: api.CodeUnsupported, Field: "user", Message: "commands run as the jail's one user", Hint: "leave user out"}
	}
	return checkEnv("env", req.Env)
}

// planExec holds a command against the jail's limits.
func (j *tenantJail) planExec(req *api.ExecRequest, caller policy.Caller) (*execution, jail.ExecSpec, error) {
	if _, err := lowerOne(j.limits, policy.Limits{Wall: req.Timeout}, "timeout"); err != nil {
		return nil, jail.ExecSpec{}, err
	}
	timeout := req.Timeout.Std()
	if timeout == 0 && !req.Background {
		timeout = j.limits.Wall.Std()
	}
	id := req.ExecID
	if id == "" {
		id = newID("exec-")
	}
	e := &execution{id: id, caller: caller, argv: req.Argv, timeout: timeout, output: j.limits.Output.Bytes(), background: req.Background}
	return e, jail.ExecSpec{Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, Stdin: req.Stdin, Timeout: timeout, Output: e.output, Background: req.Background}, nil
}

// maxAnswer bounds what one answer that is no stream holds of each output.
const maxAnswer = 8 << 20

// answerExec waits for the command and answers with its output.
func (d *Daemon) answerExec(q *request, e *execution) error {
	var stdout, stderr []byte
	cut := false
	for ev, err := range e.proc.Events(q.ctx(), 0, true) {
		if errors.Is(err, jail.ErrGone) {
			break
		}
		if err != nil {
			return err
		}
		switch ev.Kind {
		case jail.EventStdout:
			stdout, cut = appendUpTo(stdout, ev.Data, cut)
		case jail.EventStderr:
			stderr, cut = appendUpTo(stderr, ev.Data, cut)
		}
	}
	select {
	case <-e.done:
	case <-q.ctx().Done():
		return q.ctx().Err()
	}
	p := e.describe()
	p.Stdout, p.Stderr, p.Truncated = validText(stdout), validText(stderr), p.Truncated || cut
	return q.reply(http.StatusOK, p)
}

func appendUpTo(b, more []byte, cut bool) ([]byte, bool) {
	if room := maxAnswer - len(b); len(more) > room {
		return append(b, more[:room]...), true
	}
	return append(b, more...), cut
}
