package daemon

import (
	"context"
	"fmt"
	"slices"
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
	changes  *api.Diff    // guarded by mu

	wantChanges bool        // of files
	moment      jail.Moment // when it started, if they are wanted
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
	if added := addDenial(e.denials, d); len(added) <= keepDenied {
		e.denials = added
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
		if old.failed == nil && !slices.Equal(old.argv, e.argv) {
			return nil, &api.Error{Code: api.CodeConflict, Field: "exec_id", Message: fmt.Sprintf("command %.130q exists and is another one", e.id), Hint: "use a new exec_id for another command"}
		}
		return old, old.failed
	}
	begun := d.begin()
	if !begun {
		err = errStopping
	}
	if err == nil && e.run == nil {
		_, err = d.record(ctx, audit.Record{Kind: audit.KindExec, Tenant: j.tenant, RunID: e.id, Caller: e.caller,
			Fields: map[string]any{"phase": "start", "argv": clipAll(e.argv), "background": e.background, "cwd": spec.Cwd, "user": spec.User}})
	}
	if err == nil && e.wantChanges {
		e.moment, err = j.jail.Now()
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
	for _, denial := range e.exitDenials(&exit) {
		e.denied(denial)
	}
	e.noteChanges(d.base)
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
