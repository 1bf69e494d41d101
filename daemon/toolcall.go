package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"sandboxd/daemon/api"
	"sandboxd/daemon/service"
	"sandboxd/isolate"
	"sandboxd/policy/schema"
)

// maxChecked is how many bytes of arguments a run may have checked: a loop of
// calls that are refused costs the daemon no more than that.
const maxChecked = 64 << 20

// tool has a call of a tool answered, by a service or the run's own caller.
func (h *host) tool(ctx context.Context, g *grant, c isolate.Call) (json.RawMessage, error) {
	args, err := h.checkArgs(ctx, g, c)
	if err != nil {
		return nil, err
	}
	limited, cancel := ctx, context.CancelFunc(func() {})
	if g.timeout > 0 {
		limited, cancel = context.WithTimeout(ctx, g.timeout)
	}
	defer cancel()
	c.Args = args
	var answer json.RawMessage
	if g.service != nil {
		answer, err = h.askService(limited, g, c)
	} else {
		answer, err = h.askCaller(limited, g, c)
	}
	switch {
	case ctx.Err() != nil:
		// The run has ended, or has given the call up: nobody hears an answer.
		return nil, context.Canceled
	case err != nil:
		return nil, err
	}
	return answer, h.checkResult(ctx, g, c, answer)
}

// checkArgs holds the arguments against the schemas and returns them as they
// are to be sent.
func (h *host) checkArgs(ctx context.Context, g *grant, c isolate.Call) (json.RawMessage, error) {
	for _, m := range g.checks[c.Method] {
		if m.Args == nil {
			continue
		}
		if n := h.checked.Add(int64(len(c.Args))); n > maxChecked {
			return nil, &callError{"denied", fmt.Sprintf("the run has had more than %d bytes of arguments checked", maxChecked)}
		}
		value, what := c.Args, "arguments"
		if !m.Args.Array() {
			single, err := singleArgument(c)
			if err != nil {
				return nil, err
			}
			// Nothing stands for an object without anything.
			c.Args = append(append([]byte{'['}, single...), ']')
			value, what = single, "argument"
		}
		if err := m.Args.Check(ctx, value); err != nil {
			return nil, violated(err, "invalid_args", fmt.Sprintf("%s.%s: %s", g.name, c.Method, what))
		}
	}
	return c.Args, nil
}

func singleArgument(c isolate.Call) (json.RawMessage, error) {
	var args []json.RawMessage
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return nil, badCall("the arguments are not a JSON array")
	}
	switch len(args) {
	case 0:
		return json.RawMessage("{}"), nil
	case 1:
		return args[0], nil
	}
	return nil, &callError{"invalid_args", fmt.Sprintf("%s.%s takes one argument, and %d came", c.Binding, c.Method, len(args))}
}

// violated makes of a broken schema what the code is told.
func violated(err error, status, what string) error {
	var v *schema.Violation
	if !errors.As(err, &v) {
		return err
	}
	space := " "
	if v.Path != "" {
		space = ""
	}
	return &callError{status, what + space + v.Error()}
}

// checkResult keeps from the code what its service should not have given. What
// that was, is not said: the code has not been promised it.
func (h *host) checkResult(ctx context.Context, g *grant, c isolate.Call, answer json.RawMessage) error {
	for _, m := range g.checks[c.Method] {
		if m.Result == nil {
			continue
		}
		err := m.Result.Check(ctx, answer)
		var v *schema.Violation
		if !errors.As(err, &v) {
			if err != nil {
				return err
			}
			continue
		}
		h.d.log.Warn("a tool gave a result that its schema does not allow", "run", h.run.id, "tenant", h.run.tenant, "binding", g.name, "method", c.Method, "fault", v.Error())
		return &callError{"invalid_result", fmt.Sprintf("%s.%s failed through no fault of this code: its service gave a result that breaks its own schema (result%s %s)", g.name, c.Method, v.Path, v.Want)}
	}
	return nil
}

// askService has a service answer.
func (h *host) askService(ctx context.Context, g *grant, c isolate.Call) (json.RawMessage, error) {
	call := &service.Call{ID: newID("call-"), Tenant: h.run.tenant, RunID: h.run.id, Binding: g.name, Method: c.Method, Args: c.Args}
	answer, err := h.d.backends.service(g.service).Call(ctx, call)
	var refused *service.RefusedError
	var e *service.Error
	switch {
	case errors.As(err, &refused):
		return nil, badCall("%s", clip(refused.Message, maxToolError))
	case errors.As(err, &e):
		h.d.log.Warn("a service gave no answer", "run", h.run.id, "tenant", h.run.tenant, "binding", g.name, "method", c.Method, "kind", e.Kind, "error", err)
		return nil, badCall("%s.%s failed through no fault of this code: %s%s", g.name, c.Method, e.Message, hintFor(e.Kind))
	}
	return answer, err
}

const maxToolError = 4 << 10

// hintFor says who can mend what a service lacks.
func hintFor(kind string) string {
	switch kind {
	case service.KindMissing:
		return "; the operator has to start it (the daemon's log names its socket)"
	case service.KindUntrusted:
		return "; the operator has to name its user in the policy (the daemon's log says more)"
	case service.KindBusy:
		return "; make fewer calls at once, or try again"
	}
	return ""
}

// askCaller has the caller answer, who follows the run's events.
func (h *host) askCaller(ctx context.Context, g *grant, c isolate.Call) (json.RawMessage, error) {
	r := h.run
	r.mu.Lock()
	r.ncalls++
	id := "c" + strconv.Itoa(r.ncalls)
	answer := make(chan api.ToolAnswer, 1)
	if r.tools == nil {
		r.tools = map[string]chan api.ToolAnswer{}
	}
	r.tools[id] = answer
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.tools, id)
	}()
	r.events.append(api.Event{Type: api.EventCall, RunID: r.id, Call: &api.ToolCall{CallID: id, Binding: g.name, Method: c.Method, Args: validJSON(c.Args)}})
	select {
	case a := <-answer:
		if a.Error != nil {
			return nil, badCall("%s", a.Error.Message)
		}
		if a.Result == nil {
			return json.RawMessage("null"), nil
		}
		return a.Result, nil
	case <-ctx.Done():
		return nil, badCall("%s.%s was not answered in time", g.name, c.Method)
	}
}
