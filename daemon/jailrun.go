package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"sandboxd/daemon/api"
	"sandboxd/isolate"
	"sandboxd/jail"
	"sandboxd/policy"
)

// interpreters run a file of each language in a jail.
var interpreters = map[string][]string{
	"js":     {"node"},
	"python": {"python3"},
	"shell":  {"/bin/sh"},
}

// planJailRun checks a run that goes to the tenant's jail.
func (d *Daemon) planJailRun(p *plan) error {
	if err := d.need(partJails); err != nil {
		return err
	}
	if interpreters[p.request.Language] == nil {
		return &api.Error{Code: api.CodeUnsupported, Field: "language", Message: fmt.Sprintf("%s in a jail is not built in yet", p.request.Language),
			Allowed: "js, python, shell", Hint: "compile it in the jail with exec, or run it in an isolate"}
	}
	for field, given := range map[string]bool{
		"bindings":      len(p.request.Bindings) > 0,
		"deterministic": p.request.Deterministic != nil, "record": p.request.Record,
	} {
		if given {
			return &api.Error{Code: api.CodeUnsupported, Field: field, Message: field + " exist in isolates only; this run needs a jail"}
		}
	}
	if p.request.Outbound != nil {
		return &api.Error{Code: api.CodeUnsupported, Field: "outbound", Message: "a jail's way out is the policy's egress rules; it is not narrowed for one run"}
	}
	if err := checkJailRunLimits(p.request.Limits); err != nil {
		return err
	}
	var err error
	p.limits, err = lower(p.profile.Jail.Limits, p.request.Limits)
	return err
}

// checkJailRunLimits refuses limits that are the whole jail's: a lower one for
// one run would be accepted and not hold.
func checkJailRunLimits(l *policy.Limits) error {
	if l == nil {
		return nil
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"memory", l.Memory != 0}, {"cpus", l.CPUs != 0}, {"pids", l.Pids != 0}, {"open_files", l.OpenFiles != 0},
		{"disk", l.Disk != 0}, {"inodes", l.Inodes != 0}, {"io_bytes", l.IOBytes != 0}, {"io_ops", l.IOOps != 0}, {"bandwidth", l.Bandwidth != 0},
		{"idle", l.Idle != 0}, {"lifetime", l.Lifetime != 0},
	} {
		if f.set {
			return &api.Error{Code: api.CodeUnsupported, Field: "limits." + f.name, Message: "this limit is the whole jail's, not one run's", Allowed: "wall, output",
				Hint: "set it when the jail is created: PUT …/jail"}
		}
	}
	return nil
}

// runFolder is where the code of a run lies in its jail while it runs.
func runFolder(r *run) string { return path.Join("/workspace/.sandboxd/run", r.id) }

// executeInJail runs the plan as a command of the tenant's jail.
func (d *Daemon) executeInJail(ctx context.Context, r *run, p *plan) {
	j, _, err := d.tenants.acquire(ctx, r.tenant, r.caller, nil)
	if err != nil {
		d.refuse(ctx, r, err)
		return
	}
	defer func() { j.releaseAfter(err) }()
	e, err := d.startInJail(ctx, j, r, p)
	if err != nil {
		d.refuse(ctx, r, err)
		return
	}
	r.mu.Lock()
	r.record.Phase = isolate.PhaseEffectsPossible
	r.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		if err := e.proc.Kill(context.WithoutCancel(ctx)); err != nil {
			d.log.Warn("a canceled run could not be killed", "run", r.id, "error", err)
		}
	})
	defer stop()
	d.collect(r, e)
	<-e.done
	if err := j.jail.Remove(context.WithoutCancel(ctx), runFolder(r), true); err != nil && !errors.Is(err, jail.ErrGone) {
		d.log.Warn("the code of a run could not be removed", "run", r.id, "error", err)
	}
	d.completeJailRun(ctx, r, e)
}

// startInJail writes the code into the jail and starts it.
func (d *Daemon) startInJail(ctx context.Context, j *tenantJail, r *run, p *plan) (*execution, error) {
	folder := runFolder(r)
	if err := j.mkdirAll(ctx, folder); err != nil {
		return nil, fmt.Errorf("write the code: %w", err)
	}
	for name, text := range p.modules {
		file := path.Join(folder, name)
		if err := j.mkdirAll(ctx, path.Dir(file)); err != nil {
			return nil, fmt.Errorf("write the code: %w", err)
		}
		if _, err := j.jail.WriteFile(ctx, file, bytes.NewReader([]byte(text)), 0o644, int64(len(text))); err != nil {
			return nil, fmt.Errorf("write the code: %w", err)
		}
	}
	argv := append(append([]string{}, interpreters[p.request.Language]...), path.Join(folder, p.main))
	e := &execution{id: r.id, run: r, caller: r.caller, argv: argv, timeout: p.limits.Wall.Std(), output: p.limits.Output.Bytes()}
	e, err := d.startExec(ctx, j, e, jail.ExecSpec{Argv: argv, Env: p.request.Env, Stdin: p.request.Input != nil, Timeout: e.timeout, Output: e.output})
	if err != nil {
		return nil, err
	}
	if e.run != r {
		return nil, &api.Error{Code: api.CodeConflict, Field: "run_id", Message: "a command of the jail has this id"}
	}
	if p.request.Input != nil {
		go feed(e.proc.Stdin(), p.request.Input)
	}
	return e, nil
}

// feed gives the program its input. A program that does not read it ends the
// write with an error, which concerns nobody.
func feed(w io.WriteCloser, input []byte) {
	_, _ = w.Write(append(bytes.Clone(input), '\n'))
	_ = w.Close()
}

// collect copies the command's output into the run.
func (d *Daemon) collect(r *run, e *execution) {
	var stdout, stderr []byte
	cut := false
	for ev, err := range e.proc.Events(context.WithoutCancel(d.base), 0, true) {
		if err != nil {
			d.log.Warn("the output of a run was cut off", "run", r.id, "error", err)
			cut = true
			break
		}
		out := api.Event{Type: ev.Kind, Time: ev.Time}
		switch ev.Kind {
		case jail.EventStdout:
			stdout, cut = appendUpTo(stdout, ev.Data, cut)
		case jail.EventStderr:
			stderr, cut = appendUpTo(stderr, ev.Data, cut)
		default:
			continue
		}
		out.SetData(ev.Data)
		r.events.append(out)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Stdout, r.record.Stderr, r.record.Truncated = validText(stdout), validText(stderr), cut
}

// completeJailRun turns the command's end into the run's.
func (d *Daemon) completeJailRun(ctx context.Context, r *run, e *execution) {
	p := e.describe()
	r.mu.Lock()
	rec := &r.record
	rec.ExitCode, rec.Signal, rec.Truncated, rec.Usage = p.ExitCode, p.Signal, rec.Truncated || p.Truncated, p.Usage
	rec.Phase = isolate.PhaseFinished
	switch {
	case p.TimedOut:
		rec.Status = api.StatusKilled
		rec.Error = &api.Error{Code: api.CodeLimit, Limit: "wall", Used: rec.Usage.Wall.Used.String(), Allowed: rec.Usage.Wall.Limit.String(),
			Message: "the run took longer than its time limit and was killed"}
	case p.OOMKilled:
		rec.Status = api.StatusKilled
		rec.Error = &api.Error{Code: api.CodeLimit, Limit: "memory", Allowed: e.j.bounds().Memory.String(), Message: "the run used more memory than the jail may have"}
	case ctx.Err() != nil:
		rec.Status, rec.Error = api.StatusKilled, canceled(ctx)
	case p.Cause != "":
		rec.Status, rec.Error = api.StatusKilled, &api.Error{Code: api.CodeCanceled, Message: "the jail ended: " + p.Cause}
	case p.Signal != "":
		rec.Status, rec.Error = api.StatusError, &api.Error{Code: api.CodeError, Message: "the program was ended by " + p.Signal}
	case p.ExitCode == nil || *p.ExitCode != 0:
		rec.Status, rec.Error = api.StatusError, &api.Error{Code: api.CodeError, Message: exitMessage(p.ExitCode), Stack: clip(lastLines(rec.Stderr), 4000)}
	default:
		rec.Status = api.StatusOK
	}
	r.mu.Unlock()
	d.finish(ctx, r)
}

func exitMessage(code *int) string {
	if code == nil {
		return "how the program ended is not known"
	}
	return fmt.Sprintf("the program exited with %d", *code)
}

// lastLines is the end of what the program said on stderr.
func lastLines(s string) string {
	const most = 4000
	if len(s) <= most {
		return s
	}
	return validText([]byte(s[len(s)-most:]))
}

// mkdirAll makes a folder of the jail and those above it.
func (j *tenantJail) mkdirAll(ctx context.Context, dir string) error {
	if dir == "/" || dir == "/workspace" {
		return nil
	}
	if err := j.mkdirAll(ctx, path.Dir(dir)); err != nil {
		return err
	}
	if err := j.jail.Mkdir(ctx, dir, 0o755); err != nil && !isExist(err) {
		return err
	}
	return nil
}

// handleGit is POST …/jail/git.
func (d *Daemon) handleGit(q *request) error {
	var req api.GitRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	if req.Clone == nil {
		return api.Invalid("clone", "must not be null")
	}
	argv, err := gitClone(req.Clone)
	if err != nil {
		return err
	}
	return d.exec(q, &api.ExecRequest{Argv: argv, Env: map[string]string{"GIT_TERMINAL_PROMPT": "0"}})
}
