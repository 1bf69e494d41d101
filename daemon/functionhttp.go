package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/daemon/data"
	"sandboxd/isolate"
	"sandboxd/policy"
)

// noneDeployed is the value of ?replaces= that wants no function there.
const noneDeployed = "none"

// handleFunctionDeploy checks the code, has its module evaluated under the
// limits of a call, and keeps it.
func (d *Daemon) handleFunctionDeploy(q *request) error {
	var req api.FunctionRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	name := q.path("function")
	if !data.ValidDeployment(name) {
		e := api.Invalid("function", fmt.Sprintf("%.80q is not a function's name", name))
		e.Allowed = data.DeploymentPattern
		return e
	}
	f := &deployed{name: name, request: &req}
	run := runRequest(&req, &api.InvokeRequest{Limits: req.Limits})
	modules, main, err := checkRun(run)
	if err != nil {
		return err
	}
	if f.code, err = isolate.NewFunction(q.tenant, req.Language, modules, main); err != nil {
		return codeFault(err)
	}
	f.meta = functionMeta{Language: req.Language, CodeSHA256: codeHash(run, modules), Created: time.Now().UTC()}
	p, err := d.planRun(q.tenant, run, modules, main)
	if err != nil {
		return err
	}
	p.function = f
	if !d.begin() {
		return errStopping
	}
	defer d.work.Done()
	if err := d.recordFunction(q, "function_deploy", f, nil); err != nil {
		return err
	}
	if _, err := d.audit.PutCode(q.ctx(), codeText(run, modules)); err != nil {
		return &auditError{err}
	}
	f.kept.Store(true)
	if err := d.prepareFunction(q, p); err != nil {
		return errors.Join(err, d.recordFunction(q, "function_refused", f, err))
	}
	if err := d.storeFunction(q, f, p.profile.Isolate.Functions); err != nil {
		return errors.Join(err, d.recordFunction(q, "function_refused", f, err))
	}
	if err := d.recordFunction(q, "function_deployed", f, nil); err != nil {
		return err
	}
	return q.reply(http.StatusOK, d.describeFunction(q.ctx(), q.tenant, f))
}

// codeFault says that the code itself is too large or not text.
func codeFault(err error) error {
	var fault *isolate.RequestError
	if !errors.As(err, &fault) {
		return err
	}
	if fault.Limit != "" {
		return fromRequest(fault)
	}
	return &api.Error{Code: api.CodeRejected, Field: fault.Field, Message: fault.Message}
}

// prepareFunction has the pool evaluate the module. What the worker says of the
// snapshot is shown, and relied on for nothing.
func (d *Daemon) prepareFunction(q *request, p *plan) error {
	deterministic := p.request.Deterministic != nil
	p.deterministic = nil
	req := isolateRequest(&run{tenant: q.tenant}, p)
	req.Prepare = true
	ctx, cancel := context.WithCancel(q.ctx())
	defer cancel()
	defer context.AfterFunc(d.base, cancel)()
	res, err := d.pool.Run(ctx, req, noHost{})
	if err != nil {
		return err
	}
	if res.Error != nil {
		return fromRun(res.Error)
	}
	if s := res.Prepared; s != nil {
		p.function.meta.Snapshot, p.function.meta.Reason = s.Snapshot, clip(s.Reason, 300)
	}
	if deterministic {
		p.function.meta.Snapshot, p.function.meta.Reason = false, "its calls are deterministic, and evaluate the module themselves"
	}
	if !p.function.meta.Snapshot {
		p.function.code.EvaluateAnew()
	}
	return nil
}

// noHost answers a module that is evaluated for no call: it may ask for nothing.
type noHost struct{}

// Call implements isolate.Host.
func (noHost) Call(context.Context, isolate.Call) (json.RawMessage, error) {
	return nil, errors.New("a function's module is evaluated, and no call is under way")
}

// Event implements isolate.Host. What is printed then is printed in each call.
func (noHost) Event(isolate.Event) {}

// storeFunction keeps the deployment, unless that is not what the caller wants.
func (d *Daemon) storeFunction(q *request, f *deployed, b policy.FunctionBounds) error {
	meta, err := json.Marshal(f.meta)
	if err != nil {
		return err
	}
	body, err := json.Marshal(f.request)
	if err != nil {
		return err
	}
	old := d.functions.deployed(q.ctx(), q.tenant, f.name)
	dep := &data.Deployment{Name: f.name, Meta: meta, Body: body}
	err = d.data.Deployments(q.tenant).Put(q.ctx(), dep, data.Bounds{Count: b.Count, Bytes: b.Bytes.Bytes()}, func(old json.RawMessage) error {
		return checkReplaces(q.query("replaces"), old)
	})
	if err != nil {
		return err
	}
	f.stamp, f.size = dep.Stamp, dep.Size
	d.functions.forget(q.tenant, f.name)
	d.functions.keep(functionKey{q.tenant, f.name}, f)
	if old != nil && !old.code.Same(f.code) {
		d.pool.Forget(q.tenant, old.code)
	}
	return nil
}

// checkReplaces holds what is deployed against what the caller thinks it is.
func checkReplaces(want string, old json.RawMessage) error {
	if want == "" {
		return nil
	}
	have := noneDeployed
	if old != nil {
		var meta functionMeta
		if err := json.Unmarshal(old, &meta); err != nil {
			return fmt.Errorf("read what is deployed: %w", err)
		}
		have = meta.CodeSHA256
	}
	if have == want {
		return nil
	}
	return &api.Error{Code: api.CodeConflict, Field: "replaces", Message: "another code is deployed than the one to be replaced", Used: have, Hint: "look at it again, or leave replaces out"}
}

func (d *Daemon) recordFunction(q *request, event string, f *deployed, failed error) error {
	fields := map[string]any{"event": event, "what": f.name, "language": f.meta.Language, "code_sha256": f.meta.CodeSHA256}
	if failed != nil {
		e := toAPI(failed)
		fields["error"] = map[string]any{"code": e.Code, "message": clip(e.Message, 500)}
	}
	_, err := d.record(q.ctx(), audit.Record{Kind: audit.KindData, Tenant: q.tenant, Caller: q.caller(), Fields: fields})
	return err
}

func (d *Daemon) handleFunctions(q *request) error {
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	all, err := d.data.Deployments(q.tenant).List(q.ctx())
	if err != nil {
		return err
	}
	list := api.FunctionList{Functions: []api.Function{}}
	for i := range all {
		list.Functions = append(list.Functions, d.describeListed(q.ctx(), q.tenant, &all[i]))
	}
	return q.reply(http.StatusOK, list)
}

// describeListed describes a deployment of which only the head was read.
func (d *Daemon) describeListed(ctx context.Context, tenant string, dep *data.Deployment) api.Function {
	f := &deployed{name: dep.Name, size: dep.Size}
	err := dep.Err
	if err == nil {
		err = json.Unmarshal(dep.Meta, &f.meta)
	}
	if err != nil {
		d.log.Error("a deployed function is damaged", "tenant", tenant, "function", dep.Name, "error", err)
		return api.Function{Name: dep.Name, Error: "it is damaged: deploy it again, or delete it"}
	}
	return d.describeFunction(ctx, tenant, f)
}

func (d *Daemon) describeFunction(ctx context.Context, tenant string, f *deployed) api.Function {
	n, last := d.functions.count(ctx, tenant, f.name, f.meta.Created)
	return api.Function{Name: f.name, Language: f.meta.Language, CodeSHA256: f.meta.CodeSHA256, Created: f.meta.Created, Size: f.size,
		Snapshot: f.meta.Snapshot, SnapshotReason: f.meta.Reason, Invocations: n, LastUsed: last}
}

func (d *Daemon) handleFunctionGet(q *request) error {
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	f, err := d.functions.get(q.ctx(), q.tenant, q.path("function"))
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, d.describeFunction(q.ctx(), q.tenant, f))
}

func (d *Daemon) handleFunctionDelete(q *request) error {
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	name := q.path("function")
	if err := d.recordData(q, "function_delete", clip(name, 64)); err != nil {
		return err
	}
	old := d.functions.deployed(q.ctx(), q.tenant, name)
	if _, err := d.data.Deployments(q.tenant).Delete(q.ctx(), name); err != nil {
		return err
	}
	d.functions.forget(q.tenant, name)
	if old != nil {
		d.pool.Forget(q.tenant, old.code)
	}
	return q.noContent()
}

// runRequest is the run that a call of a function is.
func runRequest(f *api.FunctionRequest, inv *api.InvokeRequest) *api.RunRequest {
	r := &api.RunRequest{Language: f.Language, Code: f.Code, Modules: f.Modules, Main: f.Main, Args: f.Args, Input: inv.Input, Env: f.Env,
		Bindings: f.Bindings, Outbound: f.Outbound, Limits: inv.Limits, Deterministic: f.Deterministic,
		Environment: api.EnvironmentIsolate, RunID: inv.RunID, Record: inv.Record}
	if len(inv.Env) > 0 {
		r.Env = maps.Clone(f.Env)
		if r.Env == nil {
			r.Env = map[string]string{}
		}
		maps.Copy(r.Env, inv.Env)
	}
	if inv.Deterministic != nil {
		r.Deterministic = inv.Deterministic
	}
	return r
}

// invocationHash tells two calls with one run_id apart. The code is not in it:
// the same call after a new deployment is still the same call.
func invocationHash(name string, inv *api.InvokeRequest) string {
	text, _ := json.Marshal(inv) // it was JSON before
	sum := sha256.Sum256(append([]byte("invoke "+name+"\x00"), text...))
	return hex.EncodeToString(sum[:])
}
