package isolate

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"sync"
	"time"
)

const (
	// maxKept bounds what a process keeps of functions, in bytes of their code
	// and of their modules' pages. A tenant has no more than half of it.
	maxKept = 64 << 20
	// maxDelta bounds the pages of one evaluated module. What has more is
	// evaluated anew for each call.
	maxDelta = 16 << 20
	// keptIdle is how long what nobody calls is kept.
	keptIdle = 5 * time.Minute
)

// A kept is what a process keeps of a function: its code, and its module as
// evaluated once that was done. It stays in the process that made it: one that
// was taken over spoils nothing elsewhere.
type kept struct {
	key    functionKey
	tenant string
	// code is what the daemon sent. It does not change.
	code functionCode

	// state is guarded by keptFunctions.mu.
	state keptState
}

// A functionCode is a function as it travels to a worker.
type functionCode struct {
	Tenant   string
	Language string
	Main     string
	Modules  map[string]string
	Units    map[string]*compiled
	// Hash is that of Function.
	Hash [sha256.Size]byte
}

func (c *functionCode) size() int64 {
	n := int64(1024)
	for name, text := range c.Modules {
		n += int64(len(name) + len(text))
	}
	for _, u := range c.Units {
		n += int64(len(u.Text) + len(u.Mappings))
	}
	return n
}

// A keptState says whether there is a snapshot.
type keptState struct {
	// snapshot is that of the language's engine; nil while there is none.
	snapshot snapshot
	// reason is why there will be none.
	reason string
}

// A snapshot is an engine's. It is not written any more.
type snapshot interface{ Bytes() uint64 }

// keptFunctions are those of one process.
type keptFunctions struct {
	most int64 // 0 means maxKept
	idle time.Duration

	mu    sync.Mutex
	byKey map[functionKey]*list.Element // of keptEntry
	order list.List                     // the last used first
	bytes int64
	used  map[string]int64 // bytes by tenant
	timer *time.Timer      // runs while there are entries
}

type keptEntry struct {
	k     *kept
	bytes int64
	since time.Time
}

// get finds a function and what there is of it.
func (f *keptFunctions) get(key functionKey) *kept {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.byKey[key]
	if e == nil {
		return nil
	}
	f.order.MoveToFront(e)
	x := e.Value.(*keptEntry)
	x.since = time.Now()
	return x.k
}

// put keeps a function's code, and gives the one that is kept: another run may
// have been first.
func (f *keptFunctions) put(key functionKey, code *functionCode) *kept {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.byKey[key]; e != nil {
		return e.Value.(*keptEntry).k
	}
	k := &kept{key: key, tenant: code.Tenant, code: *code}
	if f.byKey == nil {
		f.byKey, f.used = map[functionKey]*list.Element{}, map[string]int64{}
	}
	x := &keptEntry{k: k, since: time.Now()}
	f.byKey[key] = f.order.PushFront(x)
	f.grow(x, code.size())
	if f.timer == nil {
		f.timer = time.AfterFunc(f.idleTime(), f.sweep)
	}
	return k
}

// look tells what is known of a function's module.
func (f *keptFunctions) look(k *kept) keptState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return k.state
}

// settle notes what became of the evaluation; the first word counts.
func (f *keptFunctions) settle(k *kept, s keptState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.state.snapshot != nil || k.state.reason != "" {
		return
	}
	k.state = s
	// It may have been dropped meanwhile: then only the runs that hold it have
	// its snapshot.
	if e := f.byKey[k.key]; e != nil && e.Value.(*keptEntry).k == k && s.snapshot != nil {
		f.grow(e.Value.(*keptEntry), int64(s.snapshot.Bytes()))
	}
}

// grow counts more bytes of an entry and drops others for them; mu is held.
func (f *keptFunctions) grow(x *keptEntry, n int64) {
	x.bytes += n
	f.bytes += n
	f.used[x.k.tenant] += n
	most := f.most
	if most == 0 {
		most = maxKept
	}
	for e := f.order.Back(); e != nil && (f.bytes > most || f.used[x.k.tenant] > most/2); {
		prev := e.Prev()
		old := e.Value.(*keptEntry)
		// The tenant makes room for itself first.
		if f.used[x.k.tenant] <= most/2 || old.k.tenant == x.k.tenant {
			f.drop(e)
		}
		e = prev
	}
}

// drop forgets an entry; mu is held.
func (f *keptFunctions) drop(e *list.Element) {
	x := f.order.Remove(e).(*keptEntry)
	delete(f.byKey, x.k.key)
	f.bytes -= x.bytes
	if f.used[x.k.tenant] -= x.bytes; f.used[x.k.tenant] == 0 {
		delete(f.used, x.k.tenant)
	}
}

func (f *keptFunctions) idleTime() time.Duration {
	if f.idle > 0 {
		return f.idle
	}
	return keptIdle
}

// sweep drops what nobody has called for a while.
func (f *keptFunctions) sweep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.timer = nil
	for e := f.order.Back(); e != nil; e = f.order.Back() {
		left := f.idleTime() - time.Since(e.Value.(*keptEntry).since)
		if left > 0 {
			f.timer = time.AfterFunc(left, f.sweep)
			return
		}
		f.drop(e)
	}
}

// close drops everything.
func (f *keptFunctions) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	for e := f.order.Back(); e != nil; e = f.order.Back() {
		f.drop(e)
	}
}

// count tells what is kept, for tests.
func (f *keptFunctions) count() (entries int, bytes int64, tenants []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for t := range f.used {
		tenants = append(tenants, t)
	}
	slices.Sort(tenants)
	return f.order.Len(), f.bytes, tenants
}
