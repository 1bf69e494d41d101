package daemon

import (
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// describe is the command as the API shows it.
func (e *execution) describe() api.Process {
	info := e.proc.Info()
	e.mu.Lock()
	defer e.mu.Unlock()
	p := api.Process{ExecID: e.id, Tenant: e.j.tenant, Argv: e.argv, State: "running", Background: e.background, TTY: e.proc.Terminal() != nil, Pid: info.Pid,
		Started: info.Started, Timeout: policy.Duration(e.timeout), Denials: append([]api.Denial(nil), e.denials...), Receipt: e.receipt, Events: info.Events}
	if p.Started.IsZero() {
		p.Started = e.begun
	}
	p.Usage.BytesOut, p.Usage.BytesIn, p.Usage.Requests = api.UsedCount(e.bytesOut, 0), api.UsedCount(e.bytesIn, 0), api.UsedCount(e.requests, 0)
	p.Usage.Wall = api.UsedDuration(time.Since(p.Started), e.timeout)
	p.Usage.Output.Limit = e.output
	if e.exit == nil {
		p.Denials = append(p.Denials, refusedCalls(info.Refused)...)
		return p
	}
	x := e.exit
	p.Changes = e.changes
	p.State, p.Signal, p.TimedOut, p.OOMKilled, p.Cause, p.Truncated = "exited", x.Signal, x.TimedOut, x.OOMKilled, x.Cause, x.Truncated
	if x.Code >= 0 && x.Signal == "" {
		p.ExitCode = ptr(x.Code)
	}
	p.Usage.Wall = api.UsedDuration(x.Wall, e.timeout)
	p.Usage.CPU.Used = knownDuration(x.Usage.CPU)
	p.Usage.MemoryPeak = api.CountUse{Used: known(x.Usage.MemoryPeak), Limit: e.j.bounds().Memory.Bytes()}
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
