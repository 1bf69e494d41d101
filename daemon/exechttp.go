package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"sandboxd/daemon/api"
	"sandboxd/jail"
	"sandboxd/policy"
)

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
func (d *Daemon) exec(q *request, req *api.ExecRequest) (err error) {
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
	defer func() { j.releaseAfter(err) }()
	e, spec, err := j.planExec(req, q.caller())
	if err != nil {
		return err
	}
	files, byStream, err := q.claimFiles(req.FDs)
	if err != nil {
		return err
	}
	spec.Files = byStream
	// The command outlives the connection.
	e, err = d.startExec(context.WithoutCancel(q.ctx()), j, e, spec)
	// Now, not with the answer: who reads from a pipe waits for its last holder.
	closeFiles(files)
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
	if req.User != "" {
		if err := jail.CheckUser(req.User); err != nil {
			return err
		}
	}
	return checkEnv("env", req.Env)
}

// planExec holds a command against the jail's limits.
func (j *tenantJail) planExec(req *api.ExecRequest, caller policy.Caller) (*execution, jail.ExecSpec, error) {
	limits := j.bounds()
	if _, err := lowerOne(limits, policy.Limits{Wall: req.Timeout}, "timeout"); err != nil {
		return nil, jail.ExecSpec{}, err
	}
	timeout := req.Timeout.Std()
	if timeout == 0 && !req.Background {
		timeout = limits.Wall.Std()
	}
	id := req.ExecID
	if id == "" {
		id = newID("exec-")
	}
	e := &execution{id: id, caller: caller, argv: req.Argv, timeout: timeout, output: limits.Output.Bytes(), background: req.Background,
		wantChanges: req.Receipt != nil && req.Receipt.Files}
	spec := jail.ExecSpec{Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: req.Stdin, Timeout: timeout, Output: e.output, Background: req.Background}
	if req.Background {
		// It may run for days: its newest output is what counts.
		spec.Output, spec.Keep = 0, e.output
	}
	if req.TTY != nil {
		spec.Terminal, spec.Stdin = ptr(sizeOf(req.TTY)), false
	}
	return e, spec, nil
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
