package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/isolate/quickjs"
)

const (
	maxWorkers = 9
	// overstay is how long after its deadline a run may keep its worker.
	overstay = 500 * time.Millisecond
	// startTime is what a worker gets to become ready.
	startTime = 60 * time.Second
)

// closedReason is why a worker ends with its pool.
const closedReason = "the pool is closed"

// workerPool is a Pool of worker processes.
type workerPool struct {
	cfg      Config
	log      *slog.Logger
	compiler *compiler
	tenants  *tenants
	guest    *os.File // sealed memfd
	streams  string   // the polyfill
	python   *latePython
	cache    *os.File // directory
	temp     string   // removed with Close

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	group  sync.WaitGroup // supervisors

	mu      sync.Mutex
	closed  bool
	workers []*process    // nil while there is none
	changed chan struct{} // closed when workers changes
	places  *places

	quiet        quiet
	lastRun      atomic.Uint64
	runs, killed atomic.Uint64
}

// NewWorkers makes a pool of worker processes. It returns when all of them are
// confined and ready; Python may come later, see Stats.Preparing.
func NewWorkers(ctx context.Context, cfg Config) (Pool, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Exe == "" {
		cfg.Exe = "/proc/self/exe"
		if cfg.Args == nil {
			cfg.Args = []string{"role", "isolate-worker"}
		}
	}
	if cfg.UIDBase == 0 {
		cfg.UIDBase = DefaultUIDBase
	}
	if cfg.Workers <= 0 {
		// One more than there are processors, see pick.
		cfg.Workers = min(runtime.NumCPU()+1, maxWorkers)
	}
	if cfg.MaxRuns <= 0 {
		cfg.MaxRuns = runsPerWorker * cfg.Workers
	}
	p := &workerPool{cfg: cfg, log: cfg.Log, workers: make([]*process, cfg.Workers), changed: make(chan struct{}), places: newPlaces(cfg.MaxRuns)}
	p.compiler, p.tenants = newCompiler(p), newTenants(p)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.python = newLatePython()
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := p.startAll(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// prepare loads the guest and has it compiled, so that workers find the code in
// the cache. What it makes is readable to them, and writable to us alone.
func (p *workerPool) prepare(ctx context.Context) error {
	js, err := loadJS(p.cfg.GuestDir)
	if err != nil {
		return err
	}
	p.streams = js.streams
	dir := p.cfg.CacheDir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "isolate-cache-"); err != nil {
			return fmt.Errorf("isolate: cache: %w", err)
		}
		p.temp = dir
	}
	dir = filepath.Join(dir, "workers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("isolate: cache: %w", err)
	}
	python := make(chan error, 1)
	go func() { python <- p.preparePython(dir) }()
	err = quickjs.Compile(ctx, engineOptions(js, dir))
	if err := errors.Join(err, <-python); err != nil {
		return err
	}
	if err := openToRead(dir); err != nil {
		return fmt.Errorf("isolate: cache: %w", err)
	}
	if p.cache, err = os.Open(dir); err != nil {
		return fmt.Errorf("isolate: cache: %w", err)
	}
	p.guest, err = sealed(js.wasm)
	return err
}

// openToRead lets everyone read what is under dir, and only us write it. A
// directory that others could write to would let them choose the machine code
// of the next start.
func openToRead(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return ifThere(err)
		}
		info, err := d.Info()
		if err != nil {
			return ifThere(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to user %d", path, st.Uid)
		}
		switch {
		case d.IsDir():
			return os.Chmod(path, 0o755)
		case d.Type().IsRegular():
			return ifThere(os.Chmod(path, 0o644))
		}
		return fmt.Errorf("%s is neither a file nor a directory", path)
	})
}

// ifThere is err, unless it says that a file has gone: another daemon that
// shares the cache was just writing it.
func ifThere(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// sealed puts b into a memfd that nobody can change.
func sealed(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("isolate-guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("isolate: memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "isolate-guest")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, fmt.Errorf("isolate: memfd: %w", err)
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("isolate: memfd: %w", err)
	}
	return f, nil
}

// startAll starts the first generation, and a supervisor for each.
func (p *workerPool) startAll(ctx context.Context) error {
	errs := make(chan error, len(p.workers)+compilers)
	for i := range compilers {
		go func() { errs <- p.compiler.start(ctx, i) }()
	}
	for i := range p.workers {
		go func() {
			w, err := p.start(ctx, i, kindShared)
			if err == nil {
				p.install(i, w)
				p.group.Go(func() { p.supervise(i, w) })
			}
			errs <- err
		}()
	}
	var all []error
	for range cap(errs) {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// install puts a worker in its place; nil takes it out.
func (p *workerPool) install(i int, w *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers[i] = w
	close(p.changed)
	p.changed = make(chan struct{})
}

// supervise starts worker i again whenever it has ended.
func (p *workerPool) supervise(i int, w *process) {
	late := p.python.done
	if w.python {
		late = nil
	}
	for {
		select {
		case <-w.dead:
		case <-late:
			late = nil
			w = p.renew(i, w)
			continue
		}
		p.install(i, nil)
		w.wait()
		ok := p.restart(i, func() (err error) {
			if w, err = p.start(p.ctx, i, kindShared); err == nil {
				p.install(i, w)
			}
			return err
		})
		if !ok {
			return
		}
	}
}

// restart calls start until it succeeds; false means that the pool is closed.
func (p *workerPool) restart(i int, start func() error) bool {
	for pause := time.Duration(0); p.pause(pause); {
		err := start()
		if err == nil {
			return true
		}
		if p.ctx.Err() != nil {
			return false
		}
		pause = min(max(2*pause, 100*time.Millisecond), 10*time.Second)
		p.log.Error("an isolate worker cannot be started", "worker", i, "error", err, "again_in", pause)
	}
	return false
}

// pause waits; false means that the pool is closed.
func (p *workerPool) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ctx.Done():
		return false
	case <-t.C:
		return p.ctx.Err() == nil
	}
}

// pick gives the worker with the fewest runs one more. It waits while no worker
// is there. One tenant has runs in all workers but one: the next one's find a
// process that the kernel has not seen computing all the time, and which
// therefore gets a processor at once. Of several with as few runs it is the one
// that ran the function last.
func (p *workerPool) pick(ctx context.Context, tenant string, f *Function, python bool) (*process, error) {
	last := -1
	if f != nil {
		last = int(f.worker.Load()) - 1
	}
	p.mu.Lock()
	for {
		if p.closed {
			p.mu.Unlock()
			return nil, ErrClosed
		}
		if w := p.best(tenant, last, python); w != nil {
			w.load++
			w.tenants[tenant]++
			p.mu.Unlock()
			return w, nil
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.ctx.Done():
			return nil, ErrClosed
		}
		p.mu.Lock()
	}
}

// best is the worker for a tenant's next run, if can be the last one, and one
// with Python if it has to; p.mu is held.
func (p *workerPool) best(tenant string, last int, python bool) *process {
	var best, own *process
	alive, has := 0, 0
	for _, w := range p.workers {
		if w == nil || w.failed() || python && !w.python {
			continue
		}
		alive++
		if best == nil || w.load < best.load || w.load == best.load && w.index == last {
			best = w
		}
		if w.tenants[tenant] > 0 {
			has++
			if own == nil || w.load < own.load || w.load == own.load && w.index == last {
				own = w
			}
		}
	}
	if own != nil && has >= alive-1 {
		return own
	}
	return best
}

func (p *workerPool) release(w *process, tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.load--; w.load == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
	if w.tenants[tenant]--; w.tenants[tenant] == 0 {
		delete(w.tenants, tenant)
	}
}

// Run implements Pool.
func (p *workerPool) Run(ctx context.Context, req *Request, host Host) (*Result, error) {
	req, err := req.resolve()
	if err != nil {
		return nil, err
	}
	if req.Language == languagePython {
		if err := p.python.wait(ctx); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			return nil, requestError("language", "is python: %s", err)
		}
	}
	if err := p.places.take(ctx, req.Tenant); err != nil {
		return nil, err
	}
	defer p.places.give(req.Tenant)
	p.quiet.begin()
	if kindOf(req) != kindShared {
		return p.runOwn(ctx, req, host)
	}
	w, err := p.pick(ctx, req.Tenant, req.Function, req.Language == languagePython)
	if err != nil {
		return nil, err
	}
	defer p.release(w, req.Tenant)
	p.runs.Add(1)
	var job *jobMessage
	if f := req.Function; f != nil {
		f.worker.Store(int32(w.index) + 1)
		job = functionJob(req)
	} else {
		var early *Result
		if job, early, err = p.compile(ctx, req); err != nil || early != nil {
			return early, err
		}
	}
	job.Linger = p.only()
	res, err := w.run(ctx, p.lastRun.Add(1), job, host, nil)
	w.settled(req.Function)
	if err != nil || res.Status == StatusKilled {
		p.killed.Add(1)
	}
	return res, err
}

// only tells whether a run is the pool's only one, and there is a processor that
// nobody has need of: the others' are the daemon's and its client's.
func (p *workerPool) only() bool { return runtime.NumCPU() > 1 && p.places.count() == 1 }

// compile makes a job of a request. early is the result of a run that ends
// with it.
func (p *workerPool) compile(ctx context.Context, req *Request) (job *jobMessage, early *Result, err error) {
	started := time.Now()
	limited, cancel := context.WithDeadline(ctx, started.Add(req.Limits.Wall))
	defer cancel()
	units, err := p.compiler.prepare(limited, req)
	spent := time.Since(started)
	switch {
	case err == nil:
		return &jobMessage{Request: req, Units: units, Spent: spent}, nil, nil
	case ctx.Err() != nil:
		early = &Result{Error: &Error{Kind: KindCanceled, Message: "the caller has ended the run"}}
	case limited.Err() != nil:
		early = &Result{Error: limitError("wall", spent.Round(time.Millisecond), req.Limits.Wall)}
	default:
		return nil, nil, err
	}
	p.killed.Add(1)
	early.Status, early.Phase, early.Usage.Wall = StatusKilled, PhaseNotStarted, spent
	return nil, early, nil
}

// Stats implements Pool.
func (p *workerPool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Running: p.places.count(), Runs: p.runs.Load(), Killed: p.killed.Load(), TenantWorkers: p.tenants.count(), Preparing: p.python.doing()}
	for _, w := range p.workers {
		if w != nil {
			s.Workers++
		}
	}
	return s
}

// Close implements Pool.
func (p *workerPool) Close() error {
	p.mu.Lock()
	p.closed = true
	workers := append([]*process(nil), p.workers...)
	p.mu.Unlock()
	p.cancel()
	p.places.close()
	for _, w := range workers {
		if w != nil {
			w.kill(closedReason, nil)
		}
	}
	p.group.Wait()
	p.tenants.close()
	p.compiler.close()
	var errs []error
	for _, c := range []io.Closer{p.guest, p.cache} {
		if f := c.(*os.File); f != nil {
			errs = append(errs, f.Close())
		}
	}
	p.guest, p.cache = nil, nil
	errs = append(errs, p.python.close())
	if p.temp != "" {
		errs = append(errs, os.RemoveAll(p.temp))
	}
	return errors.Join(errs...)
}
