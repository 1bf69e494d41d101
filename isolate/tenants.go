package isolate

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"
)

// A tenant's own modules run in worker processes of that tenant's, and so does
// everything of a tenant whose isolation is strict. They are started when they
// are wanted, kept while they are used, and ended when idle, or earlier where
// another tenant needs the place.

const (
	// tenantWorkers is how many there are at most, tenantIdle how long one is
	// kept that nobody uses, where Config says nothing.
	tenantWorkers = 16
	tenantIdle    = 30 * time.Second
	// ownWorkers is how many of them one tenant has for one kind: a module that
	// was never compiled goes to one where nothing runs, so that its end is the
	// end of nothing else.
	ownWorkers = 3
	// keptModules and keptModuleBytes bound the compiled modules of one worker,
	// in binaries.
	keptModules     = 16
	keptModuleBytes = 64 << 20
)

// Kinds of workers by what they run; the shared ones run all but wasm.
const (
	kindShared = ""
	kindJS     = "js"
	kindPython = "python"
	kindWasm   = "wasm"
)

// kindOf is the kind of worker for a request.
func kindOf(req *Request) string {
	switch {
	case req.Language == languageWasm:
		return kindWasm
	case !req.Strict:
		return kindShared
	case req.Language == languagePython:
		return kindPython
	}
	return kindJS
}

// A moduleKey names a module by its content.
type moduleKey = [sha256.Size]byte

// A tenantWorker is a worker of one tenant. Its fields are under tenants.mu.
type tenantWorker struct {
	tenant, kind string
	slot         int
	proc         *process // nil while it starts
	load         int
	compiling    *moduleKey // what it compiles; it takes no other run
	used         time.Time  // when it became idle
	modules      map[moduleKey]*keptModule
	// stale: it keeps what was deleted, takes no more runs and ends with those
	// that it has.
	stale bool
}

type keptModule struct {
	size int
	used time.Time
}

// tenants are the workers that belong to tenants.
type tenants struct {
	pool *workerPool
	most int
	idle time.Duration

	mu      sync.Mutex
	all     []*tenantWorker
	slots   map[int]bool // taken, until the process was reaped
	changed chan struct{}
	sweeper *time.Timer
	closed  bool
	group   sync.WaitGroup
}

func newTenants(p *workerPool) *tenants {
	t := &tenants{pool: p, most: p.cfg.TenantWorkers, idle: p.cfg.TenantIdle, slots: map[int]bool{}, changed: make(chan struct{})}
	if t.most <= 0 {
		t.most = tenantWorkers
	}
	if t.idle <= 0 {
		t.idle = tenantIdle
	}
	return t
}

// signal wakes all who wait; the lock is held.
func (t *tenants) signal() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// take gives a worker of the tenant's with a place for a run. With a module that
// it does not have, nothing else runs there until loaded or release says so. It
// waits while the tenant's own workers are busy, and gives ErrBusy if the
// workers of others are.
func (t *tenants) take(ctx context.Context, tenant, kind string, module *moduleKey) (w *tenantWorker, known bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		if t.closed {
			return nil, false, ErrClosed
		}
		w, known, wait := t.choose(tenant, kind, module)
		if w != nil {
			w.load++
			return w, known, nil
		}
		if !wait {
			if err := t.start(tenant, kind); err != nil {
				return nil, false, err
			}
			continue
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		t.mu.Lock()
		if ctx.Err() != nil {
			return nil, false, ErrBusy
		}
	}
}

// choose finds a worker that may take the run now. Otherwise wait tells whether
// one of the tenant's own will, or another has to be started.
func (t *tenants) choose(tenant, kind string, module *moduleKey) (best *tenantWorker, known, wait bool) {
	own := 0
	var free *tenantWorker
	for _, w := range t.all {
		if w.tenant != tenant || w.kind != kind || w.stale || w.proc != nil && w.proc.failed() {
			continue
		}
		own++
		switch {
		case w.proc == nil, w.compiling != nil && module != nil && *w.compiling == *module:
			wait = true
		case w.compiling != nil:
		case module == nil || w.modules[*module] != nil:
			if best == nil || w.load < best.load {
				best = w
			}
		case w.load == 0:
			free = w
		}
	}
	switch {
	case best != nil:
		if module != nil {
			best.modules[*module].used = time.Now()
		}
		return best, true, false
	case wait:
		return nil, false, true
	case free != nil:
		free.compiling = module
		return free, false, false
	}
	return nil, false, own >= ownWorkers
}

// start makes a worker for the tenant, in the place of the one that was idle
// longest if there is no other. The lock is held, and given back meanwhile.
func (t *tenants) start(tenant, kind string) error {
	if len(t.all) >= t.most && !t.evict() {
		return ErrBusy
	}
	w := &tenantWorker{tenant: tenant, kind: kind, used: time.Now(), modules: map[moduleKey]*keptModule{}}
	for t.slots[w.slot] {
		w.slot++
	}
	t.slots[w.slot] = true
	t.all = append(t.all, w)
	t.group.Add(1)
	t.mu.Unlock()
	proc, err := t.pool.start(t.pool.ctx, maxWorkers+compilers+w.slot, kind)
	t.mu.Lock()
	defer t.signal()
	if err != nil {
		t.remove(w)
		delete(t.slots, w.slot)
		t.group.Done()
		return err
	}
	w.proc = proc
	go func() {
		defer t.group.Done()
		<-proc.dead
		t.mu.Lock()
		t.remove(w)
		t.signal()
		t.mu.Unlock()
		proc.wait()
		t.mu.Lock()
		delete(t.slots, w.slot)
		t.mu.Unlock()
	}()
	if t.closed {
		proc.kill(closedReason, nil)
		return ErrClosed
	}
	return nil
}

// idleReason is why a worker ends that nobody used.
const idleReason = "it was idle"

// evict ends the worker that has been idle longest; false if there is none.
func (t *tenants) evict() bool {
	var oldest *tenantWorker
	for _, w := range t.all {
		if w.proc != nil && w.load == 0 && (oldest == nil || w.used.Before(oldest.used)) {
			oldest = w
		}
	}
	if oldest == nil {
		return false
	}
	t.remove(oldest)
	oldest.proc.kill(idleReason, nil)
	return true
}

func (t *tenants) remove(w *tenantWorker) {
	for i, x := range t.all {
		if x == w {
			t.all = append(t.all[:i:i], t.all[i+1:]...)
			return
		}
	}
}

// loaded notes that w has compiled a module, and that others may run there.
func (t *tenants) loaded(w *tenantWorker, module moduleKey, size int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.modules[module] = &keptModule{size: size, used: time.Now()}
	w.compiling = nil
	t.signal()
}

// makeRoom tells which modules w has to drop before it takes one of a size. No
// run of them is under way: nothing runs in w.
func (t *tenants) makeRoom(w *tenantWorker, size int) (drop []moduleKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var oldest moduleKey
		bytes := size
		var last *keptModule
		for key, m := range w.modules {
			if bytes += m.size; last == nil || m.used.Before(last.used) {
				oldest, last = key, m
			}
		}
		if last == nil || len(w.modules) < keptModules && bytes <= keptModuleBytes {
			return drop
		}
		delete(w.modules, oldest)
		drop = append(drop, oldest)
	}
}

// release gives back what take gave.
func (t *tenants) release(w *tenantWorker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.load--; w.load == 0 {
		w.compiling, w.used = nil, time.Now()
		if t.sweeper == nil && !t.closed {
			t.sweeper = time.AfterFunc(t.idle, t.sweep)
		}
		t.endStale(w)
	}
	t.signal()
}

// sweep ends the workers that were idle for long enough.
func (t *tenants) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweeper = nil
	if t.closed {
		return
	}
	next := time.Duration(0)
	for _, w := range append([]*tenantWorker(nil), t.all...) {
		if w.proc == nil || w.load > 0 {
			continue
		}
		if left := t.idle - time.Since(w.used); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		t.remove(w)
		w.proc.kill(idleReason, nil)
	}
	if next > 0 {
		t.sweeper = time.AfterFunc(next, t.sweep)
	}
	t.signal()
}

// count is how many workers there are.
func (t *tenants) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// close ends all workers.
func (t *tenants) close() {
	t.mu.Lock()
	t.closed = true
	if t.sweeper != nil {
		t.sweeper.Stop()
	}
	for _, w := range t.all {
		if w.proc != nil {
			w.proc.kill(closedReason, nil)
		}
	}
	t.signal()
	t.mu.Unlock()
	t.group.Wait()
}
