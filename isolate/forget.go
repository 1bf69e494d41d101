package isolate

import (
	"crypto/sha256"
)

// A forgetMessage says what a worker shall keep no longer.
type forgetMessage struct {
	// Tenant whose functions these are; empty means all tenants.
	Tenant string
	// Hash is that of one function; nil means all of the tenant's.
	Hash []byte `json:",omitempty"`
}

// forgetting is the message for a tenant's function; f nil stands for all.
func forgetting(tenant string, f *Function) *forgetMessage {
	m := &forgetMessage{Tenant: tenant}
	if f != nil {
		m.Tenant, m.Hash = f.tenant, f.hash[:]
	}
	return m
}

func (m *forgetMessage) means(tenant string, hash [sha256.Size]byte) bool {
	return (m.Tenant == "" || m.Tenant == tenant) && (m.Hash == nil || string(m.Hash) == string(hash[:]))
}

// forget drops what is kept of functions. Runs that are under way have it until
// they end.
func (f *keptFunctions) forget(m *forgetMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for e := f.order.Front(); e != nil; {
		next := e.Next()
		if k := e.Value.(*keptEntry).k; m.means(k.tenant, k.code.Hash) {
			f.drop(e)
		}
		e = next
	}
}

// Forget implements Pool.
func (p *inProcess) Forget(tenant string, f *Function) {
	p.engines.kept.forget(forgetting(tenant, f))
}

// Forget implements Pool.
func (p *workerPool) Forget(tenant string, f *Function) {
	if f != nil {
		// A run of it that is under way may have a worker keep it again.
		f.gone.Store(true)
	}
	m := forgetting(tenant, f)
	p.compiler.cache.forget(m.Tenant)
	p.mu.Lock()
	workers := append([]*process(nil), p.workers...)
	p.mu.Unlock()
	for _, w := range workers {
		if w != nil {
			go w.forget(m) // one that reads nothing holds up nobody
		}
	}
	p.tenants.forget(m, f)
}

// forget tells a worker. One that cannot be told is ending.
func (w *process) forget(m *forgetMessage) {
	b, err := encodeJSON(m)
	if err == nil {
		err = w.conn.Send((&frame{kind: frameForget, data: b}).encode(nil))
	}
	if err != nil && !w.failed() {
		w.fail("it takes no request", err)
	}
}

// settled is called when a run has ended in w.
func (w *process) settled(f *Function) {
	if f != nil && f.gone.Load() {
		w.forget(forgetting("", f))
	}
}

// forgottenReason is why a worker ends that holds what is not to be kept.
const forgottenReason = "what it kept was deleted"

// forget drops what the tenants' own workers keep. The code of a module goes with
// its worker: at once if nothing runs there, or when nothing does any more.
func (t *tenants) forget(m *forgetMessage, f *Function) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range append([]*tenantWorker(nil), t.all...) {
		if m.Tenant != "" && m.Tenant != w.tenant {
			continue
		}
		if w.kind != kindWasm {
			if w.proc != nil {
				go w.proc.forget(m)
			}
			continue
		}
		if f != nil && (f.language != languageWasm || w.modules[sha256.Sum256([]byte(f.modules[f.main]))] == nil) {
			continue
		}
		w.stale = true
		t.endStale(w)
	}
	t.signal()
}

// endStale ends a worker that is stale and does nothing; the lock is held.
func (t *tenants) endStale(w *tenantWorker) {
	if w.stale && w.load == 0 && w.proc != nil {
		t.remove(w)
		w.proc.kill(forgottenReason, nil)
	}
}

// forget drops the results of a tenant; empty means all.
func (r *compileResults) forget(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := r.order.Front(); e != nil; {
		next := e.Next()
		x := e.Value.(*compileEntry)
		if tenant == "" || x.key.tenant == tenant {
			r.order.Remove(e)
			delete(r.byKey, x.key)
			r.size -= x.size()
		}
		e = next
	}
}

// takeForget is a worker's part of it.
func (w *workerSide) takeForget(f *frame) error {
	m, err := decodeJSON[forgetMessage](f.data)
	if err != nil {
		return err
	}
	w.engines.kept.forget(m)
	w.engines.quiet.begin() // its memory goes back before long
	return nil
}
