package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// handleStdin copies the body to the command's standard input.
func (d *Daemon) handleStdin(q *request) error {
	return d.awake(q, func(_ *tenantJail, e *execution) error {
		if t := e.proc.Terminal(); t != nil {
			return d.typeBody(q, t)
		}
		w := e.proc.Stdin()
		if w == nil {
			return &api.Error{Code: api.CodeConflict, Message: "standard input is not open", Hint: "start the command with \"stdin\": true"}
		}
		if _, err := io.Copy(w, q.http.Body); err != nil {
			return err
		}
		if q.flag("close") {
			if err := w.Close(); err != nil {
				return err
			}
		}
		return q.noContent()
	})
}

const (
	defaultWait = 30 * time.Second
	maxWait     = time.Hour
)

// handleWait waits for one thing.
func (d *Daemon) handleWait(q *request) error {
	var req api.WaitRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	re, err := checkWait(&req)
	if err != nil {
		return err
	}
	return d.awake(q, func(j *tenantJail, e *execution) error {
		began := time.Now()
		ctx, cancel := context.WithTimeoutCause(q.ctx(), req.Timeout.Std(), context.DeadlineExceeded)
		defer cancel()
		if err := d.waitFor(ctx, j, e, &req, re); err != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return &api.Error{Code: api.CodeLimit, Limit: "wall", Allowed: req.Timeout.String(), Retryable: true,
					Message: fmt.Sprintf("%s did not happen within %s", waitWhat(&req), req.Timeout), Hint: "look at the command's output, or wait longer"}
			}
			return err
		}
		return q.reply(http.StatusOK, api.WaitAnswer{Process: e.describe(), Waited: policy.Duration(time.Since(began))})
	})
}

func checkWait(req *api.WaitRequest) (*regexp.Regexp, error) {
	given := 0
	for _, b := range []bool{req.Port != 0, req.LogRegexp != "", req.Exit} {
		if b {
			given++
		}
	}
	if given != 1 {
		return nil, api.Invalid("port", "give exactly one of port, log_regexp and exit")
	}
	if req.Timeout == 0 {
		req.Timeout = policy.Duration(defaultWait)
	}
	if req.Timeout.Std() > maxWait {
		e := api.Invalid("timeout", "is too long")
		e.Allowed = maxWait.String()
		return nil, e
	}
	if req.LogRegexp == "" {
		return nil, nil
	}
	re, err := regexp.Compile(req.LogRegexp)
	if err != nil {
		return nil, api.Invalid("log_regexp", "is not an RE2 expression: "+err.Error())
	}
	return re, nil
}

func waitWhat(req *api.WaitRequest) string {
	switch {
	case req.Port != 0:
		return fmt.Sprintf("listening on port %d", req.Port)
	case req.LogRegexp != "":
		return "the wanted output"
	default:
		return "the command's end"
	}
}

// waitFor waits; the command's end cuts short what then can no longer happen.
func (d *Daemon) waitFor(ctx context.Context, j *tenantJail, e *execution, req *api.WaitRequest, re *regexp.Regexp) error {
	if req.Exit {
		select {
		case <-e.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	happened := make(chan error, 1)
	go func() {
		if re != nil {
			happened <- e.proc.WaitLog(ctx, re)
			return
		}
		happened <- j.jail.WaitPort(ctx, uint16(req.Port))
	}()
	select {
	case err := <-happened:
		return err
	case <-e.done:
	}
	// Both may be true: what was waited for counts. All output is there now, so
	// WaitLog ends by itself; WaitPort would go on.
	if re == nil {
		cancel()
	}
	if err := <-happened; err == nil {
		return nil
	}
	p := e.describe()
	how := "ended"
	if p.ExitCode != nil {
		how = fmt.Sprintf("exited with %d", *p.ExitCode)
	} else if p.Signal != "" {
		how = "was ended by " + p.Signal
	}
	return &api.Error{Code: api.CodeConflict, Message: fmt.Sprintf("the command %s before %s", how, waitWhat(req)), Hint: "its output says more: GET …/processes/{exec}/events"}
}
