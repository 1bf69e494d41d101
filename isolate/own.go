package isolate

import (
	"context"
	"crypto/sha256"
	"maps"
	"time"
)

var (
	// compileWasm is what the compilation of a module may take, of processor
	// time. It is part of the run's wall time, and not of its processor time: the
	// code of a module is kept, and only its first run waits. Tests set it.
	compileWasm = 10 * time.Second
	// compileWall is what it may take by the clock where no run waits for it: when
	// a function is deployed.
	compileWall = time.Minute
)

// A wasmJob is what a worker needs beside the request to run a module.
type wasmJob struct {
	// Key names the module, Module is its binary if the worker does not have it.
	Key    moduleKey
	Module []byte `json:",omitempty"`
	// Drop are modules that the worker shall forget first.
	Drop []moduleKey `json:",omitempty"`
}

// runOwn runs a request in a worker of the tenant's own.
func (p *workerPool) runOwn(ctx context.Context, req *Request, host Host) (*Result, error) {
	p.runs.Add(1)
	started, kind := time.Now(), kindOf(req)
	job, key := &jobMessage{Request: req}, (*moduleKey)(nil)
	switch {
	case kind == kindWasm:
		job, key = wasmJobOf(req)
	case req.Function != nil:
		job = functionJob(req)
	}
	// A place may take a while; as long as the run may, and no longer.
	limited, cancel := context.WithDeadline(ctx, started.Add(req.Limits.Wall))
	defer cancel()
	w, known, err := p.tenants.take(limited, req.Tenant, kind, key)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			p.tenants.release(w)
		}
		return &Result{Status: StatusKilled, Phase: PhaseNotStarted, Error: &Error{Kind: KindCanceled, Message: "the caller has ended the run"},
			Usage: Usage{Wall: time.Since(started)}}, nil
	case err != nil:
		return nil, err
	}
	defer p.tenants.release(w)
	job.Spent = time.Since(started)
	loaded := func() {}
	if key != nil && !known {
		module := req.Modules[req.Main]
		job.Wasm.Module, job.Wasm.Drop = []byte(module), p.tenants.makeRoom(w, len(module))
		loaded = func() { p.tenants.loaded(w, *key, len(module)) }
	}
	res, err := w.proc.run(ctx, p.lastRun.Add(1), job, host, loaded)
	w.proc.settled(req.Function)
	if err != nil || res.Status == StatusKilled {
		p.killed.Add(1)
	}
	return res, err
}

// wasmJobOf makes a job of a request: the module travels on its own.
func wasmJobOf(req *Request) (*jobMessage, *moduleKey) {
	r := *req
	r.Modules = maps.Clone(req.Modules)
	delete(r.Modules, req.Main)
	key := moduleKey(sha256.Sum256([]byte(req.Modules[req.Main])))
	return &jobMessage{Request: &r, Wasm: &wasmJob{Key: key}}, &key
}
