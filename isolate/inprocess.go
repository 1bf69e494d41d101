package isolate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"sandboxd/isolate/cpython"
)

// runsPerCore is the number of runs at once that a pool allows unless told
// otherwise.
const runsPerWorker = 64

// inProcess is a Pool without processes.
type inProcess struct {
	engines *engines
	slots   chan struct{}

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex // orders Run's start and Close
	closed bool
	group  sync.WaitGroup

	running      atomic.Int64
	runs, killed atomic.Uint64
}

// NewInProcess makes a pool that runs everything in this process. The code is
// kept apart by the interpreter alone, and TypeScript is compiled without a limit: for
// tests and very small hosts.
func NewInProcess(ctx context.Context, cfg Config) (Pool, error) {
	js, err := loadEngine(ctx, cfg.GuestDir, cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	all := &engines{js: js, boot: func(ctx context.Context) (*cpython.Engine, error) {
		return loadPython(ctx, cfg.GuestDir, cfg.CacheDir)
	}}
	n := cfg.MaxRuns
	if n <= 0 {
		n = runsPerWorker * runtime.GOMAXPROCS(0)
	}
	p := &inProcess{engines: all, slots: make(chan struct{}, n)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// Run implements Pool.
func (p *inProcess) Run(ctx context.Context, req *Request, host Host) (*Result, error) {
	req, err := req.resolve()
	if err != nil {
		return nil, err
	}
	if req.Language == languageWasm {
		return nil, requestError("language", "is wasm, which runs in worker processes only; here everything runs in one process")
	}
	job := &jobMessage{Request: req}
	if req.Function != nil {
		job = functionJob(req)
	}
	if h, ok := host.(StartHost); ok {
		if err := h.Started(); err != nil {
			return nil, err
		}
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(p.ctx, cancel)
	var res *Result
	err = errors.New("isolate: the run ended without a result")
	done := make(chan struct{})
	go func() {
		defer p.leave()
		defer cancel()
		defer stop()
		finish := func(r *Result, e error) {
			res, err = r, e
			close(done)
		}
		if f := req.Function; f != nil {
			send := func(context.Context) (*functionCode, error) {
				return &functionCode{Tenant: f.tenant, Language: f.language, Main: f.main, Modules: f.modules, Hash: f.hash}, nil
			}
			if err := p.engines.hold(ctx, job, send); err != nil {
				finish(nil, err)
				return
			}
		}
		runOn(ctx, p.engines, job, host, finish)
	}()
	<-done
	if err != nil {
		return nil, fmt.Errorf("isolate: %w", err)
	}
	if res.Status == StatusKilled {
		p.killed.Add(1)
	}
	return res, nil
}

func (p *inProcess) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	select {
	case p.slots <- struct{}{}:
	default:
		return ErrBusy
	}
	p.group.Add(1)
	p.running.Add(1)
	p.runs.Add(1)
	return nil
}

func (p *inProcess) leave() {
	p.running.Add(-1)
	<-p.slots
	p.group.Done()
}

// Stats implements Pool.
func (p *inProcess) Stats() Stats {
	return Stats{Running: int(p.running.Load()), Runs: p.runs.Load(), Killed: p.killed.Load()}
}

// Close implements Pool.
func (p *inProcess) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.group.Wait()
	return p.engines.close()
}
