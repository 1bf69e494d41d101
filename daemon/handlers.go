package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/jail"
)

// handlers has one entry for each of api.Routes.
func (d *Daemon) handlers() map[string]handler {
	return map[string]handler{
		"run": d.handleRun, "runs": d.handleRuns, "run-get": d.handleRunGet, "run-events": d.handleRunEvents,
		"run-cancel": d.handleRunCancel, "run-call": d.handleRunCall, "run-replay": d.handleReplay,
		"functions": d.handleFunctions, "function-deploy": d.handleFunctionDeploy, "function-get": d.handleFunctionGet,
		"function-delete": d.handleFunctionDelete, "function-invoke": d.handleInvoke,
		"jails": d.handleJails, "jail-create": d.handleJailCreate, "jail-get": d.handleJailGet, "jail-update": d.handleJailUpdate, "jail-delete": d.handleJailDelete,
		"jail-touch": d.handleJailTouch, "jail-freeze": d.handleJailFreeze, "jail-thaw": d.handleJailTouch,
		"exec": d.handleExec, "processes": d.handleProcesses, "process-get": d.handleProcessGet, "process-events": d.handleProcessEvents,
		"process-signal": d.handleSignal, "process-stdin": d.handleStdin, "process-wait": d.handleWait,
		"process-resize": d.handleResize, "process-tty": d.handleTTY, "process-delete": d.handleProcessDelete,
		"ports": d.handlePorts, "port-expose": d.handleExpose, "port-get": d.handlePortGet, "port-close": d.handlePortClose,
		"file-get": d.handleFileGet, "file-put": d.handleFilePut, "file-delete": d.handleFileDelete, "file-post": d.handleFilePost,
		"archive-get": d.handleArchiveGet, "archive-put": d.handleArchivePut, "watch": d.handleWatch, "git": d.handleGit,
		"snapshots": d.handleSnapshots, "snapshot-create": d.handleSnapshotCreate, "snapshot-delete": d.handleSnapshotDelete,
		"snapshot-restore": d.handleSnapshotRestore, "export": d.handleExport, "diff": d.handleDiff,
		"kv-list": d.handleKVList, "kv-get": d.handleKVGet, "kv-put": d.handleKVPut, "kv-delete": d.handleKVDelete,
		"db-query": d.handleQuery, "db-exec": d.handleDBExec,
		"templates": d.handleTemplates, "template-get": d.handleTemplateGet, "template-import": d.handleTemplateImport, "template-delete": d.handleTemplateDelete,
		"tenant-delete": d.handleTenantDelete, "policy": d.handlePolicy, "policy-check": d.handlePolicyCheck, "policy-reload": d.handlePolicyReload, "status": d.handleStatus, "doctor": d.handleDoctor, "audit-verify": d.handleVerify,
		"secrets": d.handleSecrets, "secret-set": d.handleSecretSet, "secret-delete": d.handleSecretDelete,
		"openapi": d.handleOpenAPI, "health": d.handleHealth, "metrics": d.handleMetrics,
	}
}

// mayRun finds a run that the caller may see.
func (d *Daemon) mayRun(q *request) (*run, error) {
	only := q.query("tenant")
	return d.runs.get(q.path("run"), func(tenant string) bool {
		return (only == "" || only == tenant) && d.policy.MayAct(q.caller(), tenant)
	})
}

func (d *Daemon) handleRunGet(q *request) error {
	r, err := d.mayRun(q)
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, r.snapshot())
}

func (d *Daemon) handleRunEvents(q *request) error {
	r, err := d.mayRun(q)
	if err != nil {
		return err
	}
	after, err := q.integer("after", 0, 1<<53)
	if err != nil {
		return err
	}
	return d.stream(q, r.events.all(q.ctx(), uint64(after), q.flag("follow")))
}

// handleRunCancel ends a run and answers when it has ended.
func (d *Daemon) handleRunCancel(q *request) error {
	r, err := d.mayRun(q)
	if err != nil {
		return err
	}
	r.cancel(errAsked)
	select {
	case <-r.done:
	case <-q.ctx().Done():
		return q.ctx().Err()
	}
	return q.reply(http.StatusOK, r.snapshot())
}

// handleRunCall answers a call of the caller's own tool.
func (d *Daemon) handleRunCall(q *request) error {
	r, err := d.mayRun(q)
	if err != nil {
		return err
	}
	var answer api.ToolAnswer
	if err := q.decode(&answer); err != nil {
		return err
	}
	if answer.Error != nil && answer.Result != nil {
		return api.Invalid("error", "give result or error, not both")
	}
	r.mu.Lock()
	waiting, ok := r.tools[q.path("call")]
	delete(r.tools, q.path("call"))
	r.mu.Unlock()
	if !ok {
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("the run does not wait for call %.64q", q.path("call")), Hint: "it was answered, or the run is over"}
	}
	waiting <- answer
	return q.noContent()
}

func (d *Daemon) handleRuns(q *request) error {
	limit, err := q.integer("limit", 100, 1000)
	if err != nil {
		return err
	}
	var since time.Time
	if text := q.query("since"); text != "" {
		if since, err = time.Parse(time.RFC3339, text); err != nil {
			return api.Invalid("since", "is not a time")
		}
	}
	status, tenant := q.query("status"), q.query("tenant")
	known := []string{api.StatusRunning, api.StatusOK, api.StatusError, api.StatusRefused, api.StatusKilled}
	if status != "" && !slices.Contains(known, status) {
		e := api.Invalid("status", fmt.Sprintf("%.40q is not a status", status))
		e.Allowed = fmt.Sprint(known)
		return e
	}
	runs := d.runs.list(limit, func(r *run) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return (tenant == "" || r.tenant == tenant) && (status == "" || r.record.Status == status) &&
			!r.record.Started.Before(since) && d.policy.MayAct(q.caller(), r.tenant)
	})
	list := api.RunList{Runs: []api.Run{}}
	for _, r := range runs {
		rec := r.snapshot()
		rec.Stdout, rec.Stderr, rec.Logs, rec.Result = "", "", nil, nil
		list.Runs = append(list.Runs, rec)
	}
	return q.reply(http.StatusOK, list)
}

func (d *Daemon) handleJails(q *request) error {
	list := api.JailList{Jails: []api.Jail{}}
	for _, j := range d.tenants.all() {
		if d.policy.MayAct(q.caller(), j.tenant) {
			list.Jails = append(list.Jails, j.describe())
		}
	}
	return q.reply(http.StatusOK, list)
}

func (d *Daemon) handleJailCreate(q *request) (err error) {
	var req api.JailRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	// Checked also when there is a jail: a wrong request changes nothing and is told so.
	if _, _, err := d.planJail(q.tenant, &req); err != nil {
		return err
	}
	j, created, err := d.tenants.acquire(q.ctx(), q.tenant, q.caller(), &req)
	if err != nil {
		return err
	}
	defer func() { j.releaseAfter(err) }()
	if req.Template != "" && req.Template != j.template {
		return &api.Error{Code: api.CodeConflict, Field: "template", Message: fmt.Sprintf("the tenant's jail runs on the template %q; a running jail keeps its own", j.template),
			Hint: "export the files if they are needed (GET …/export), end the jail (DELETE …/jail), and create it with the other template"}
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		if req.Lease == "connection" {
			d.tenants.lease(j, q.peer)
		}
	}
	return q.reply(status, j.describe())
}

func (d *Daemon) handleJailGet(q *request) error {
	j := d.tenants.find(q.tenant)
	if j == nil {
		return d.noJail(q.tenant)
	}
	return q.reply(http.StatusOK, j.describe())
}

func (d *Daemon) handleJailDelete(q *request) error {
	if err := d.need(partJails); err != nil {
		return err
	}
	if err := d.tenants.remove(q.ctx(), q.tenant); err != nil {
		return err
	}
	return q.noContent()
}

func (d *Daemon) handleJailTouch(q *request) (err error) {
	j, err := d.tenants.existing(q.ctx(), q.tenant)
	if err != nil {
		return err
	}
	defer func() { j.releaseAfter(err) }()
	return q.reply(http.StatusOK, j.describe())
}

func (d *Daemon) handleJailFreeze(q *request) error {
	j := d.tenants.find(q.tenant)
	if j == nil {
		return d.noJail(q.tenant)
	}
	if err := j.freeze(q.ctx(), true); err != nil {
		if errors.Is(err, errEnding) {
			return d.noJail(q.tenant)
		}
		return err
	}
	return q.reply(http.StatusOK, j.describe())
}

func (d *Daemon) handleProcesses(q *request) error {
	list := api.ProcessList{Processes: []api.Process{}}
	if j := d.tenants.find(q.tenant); j != nil {
		for _, e := range j.executions() {
			list.Processes = append(list.Processes, e.describe())
		}
	}
	return q.reply(http.StatusOK, list)
}

// process finds a command of the tenant's jail without waking it.
func (d *Daemon) process(q *request) (*tenantJail, *execution, error) {
	j := d.tenants.find(q.tenant)
	if j == nil {
		return nil, nil, d.noJail(q.tenant)
	}
	e, err := j.execution(q.path("exec"))
	return j, e, err
}

func (d *Daemon) handleProcessGet(q *request) error {
	_, e, err := d.process(q)
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, e.describe())
}

func (d *Daemon) handleProcessEvents(q *request) error {
	j, e, err := d.process(q)
	if err != nil {
		return err
	}
	after, err := q.integer("after", 0, 1<<53)
	if err != nil {
		return err
	}
	if q.query("after") == "" {
		after = int(e.proc.FirstEvent()) - 1
	}
	if q.flag("follow") && e.running() {
		if err := j.use(q.ctx()); err != nil {
			return err
		}
		defer j.release()
	}
	return d.stream(q, e.events(q.ctx(), uint64(after), q.flag("follow")))
}

// awake runs f for a command, with its jail awake.
func (d *Daemon) awake(q *request, f func(*tenantJail, *execution) error) (err error) {
	j, err := d.tenants.existing(q.ctx(), q.tenant)
	if err != nil {
		return err
	}
	defer func() { j.releaseAfter(err) }()
	e, err := j.execution(q.path("exec"))
	if err != nil {
		return err
	}
	return f(j, e)
}

func (d *Daemon) handleSignal(q *request) error {
	var req api.SignalRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	return d.awake(q, func(_ *tenantJail, e *execution) error {
		if !e.running() {
			return &api.Error{Code: api.CodeConflict, Message: "the command has ended"}
		}
		if err := e.proc.Signal(q.ctx(), unix.SignalNum("SIG"+req.Signal)); err != nil {
			return err
		}
		return q.noContent()
	})
}

func (d *Daemon) handleProcessDelete(q *request) error {
	j, e, err := d.process(q)
	if err != nil {
		return q.noContent() // what is not there is gone: the call is idempotent
	}
	if e.running() {
		if err := j.use(q.ctx()); err != nil {
			return err
		}
		defer j.release()
		if err := e.proc.Kill(q.ctx()); err != nil && !errors.Is(err, jail.ErrGone) {
			return err
		}
		select {
		case <-e.done:
		case <-q.ctx().Done():
			return q.ctx().Err()
		}
	}
	return q.noContent()
}

// executions are the jail's commands, oldest first.
func (j *tenantJail) executions() []*execution {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []*execution
	for _, id := range j.order {
		e := j.execs[id]
		select {
		case <-e.ready:
			if e.failed == nil {
				out = append(out, e)
			}
		default:
		}
	}
	return out
}

// gitClone is the command for a clone. Only http and https leave a jail, and a
// credential in the URL would be one inside it.
func gitClone(c *api.GitClone) ([]string, error) {
	u, err := url.Parse(c.URL)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		e := api.Invalid("clone.url", "is not the URL of a repository")
		e.Allowed = "https://HOST/PATH"
		return nil, e
	}
	if u.User != nil {
		return nil, &api.Error{Code: api.CodeInvalidRequest, Field: "clone.url", Message: "must not hold a user or password: it would be visible in the jail",
			Hint: "name a credential in the policy's egress rule; the proxy adds it"}
	}
	argv := []string{"git", "clone"}
	if c.Branch != "" {
		argv = append(argv, "--branch="+c.Branch)
	}
	if c.Depth > 0 {
		argv = append(argv, fmt.Sprintf("--depth=%d", c.Depth))
	}
	argv = append(argv, "--", c.URL)
	if c.Directory != "" {
		argv = append(argv, c.Directory)
	}
	return argv, nil
}

func isExist(err error) bool {
	return errors.Is(err, os.ErrExist) || errors.Is(err, jail.ErrExists)
}
