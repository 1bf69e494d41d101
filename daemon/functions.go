package daemon

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/data"
	"sandboxd/isolate"
)

// A deployed is a deployment that is ready to be run. It does not change: a run
// holds the one that it began with, whatever is deployed meanwhile.
type deployed struct {
	name    string
	request *api.FunctionRequest
	meta    functionMeta
	code    *isolate.Function
	stamp   data.Stamp
	size    int64
	kept    atomic.Bool // its code is known to be in the audit log's store
}

// functionMeta is what is kept of a deployment beside its request.
type functionMeta struct {
	Language   string    `json:"language"`
	CodeSHA256 string    `json:"code_sha256"`
	Created    time.Time `json:"created"`
	Snapshot   bool      `json:"snapshot"`
	Reason     string    `json:"reason,omitempty"`
}

// functionKey names a deployment: never by the caller's name alone.
type functionKey struct{ tenant, name string }

// keepFunctions bounds what is kept of deployments in memory, in bytes of their
// files; what is not there is read again.
const keepFunctions = 64 << 20

// saveUsesAfter is how much of the counting a crash can lose.
const saveUsesAfter = time.Minute

// functionTable holds the deployments used last, and counts the uses of all.
type functionTable struct {
	d *Daemon

	mu    sync.Mutex
	byKey map[functionKey]*list.Element // guarded by mu
	order *list.List                    // guarded by mu; of functionEntry, the last used first
	bytes int64                         // guarded by mu
	uses  map[string]map[string]*use    // guarded by mu: by tenant and function
	dirty map[string]bool               // guarded by mu: tenants whose uses are not saved
	timer *time.Timer                   // guarded by mu; nil while nothing is to be saved
}

type functionEntry struct {
	key functionKey
	f   *deployed
}

// A use counts the calls of one deployment.
type use struct {
	// Code and Created say which deployment it is.
	Created time.Time `json:"created"`
	Count   uint64    `json:"count"`
	Last    time.Time `json:"last"`
}

func newFunctionTable(d *Daemon) *functionTable {
	return &functionTable{d: d, byKey: map[functionKey]*list.Element{}, order: list.New(), uses: map[string]map[string]*use{}, dirty: map[string]bool{}}
}

// get finds a deployment. Its file decides: what is kept in memory is used only
// while it is that file's.
func (t *functionTable) get(ctx context.Context, tenant, name string) (*deployed, error) {
	k, store := functionKey{tenant, name}, t.d.data.Deployments(tenant)
	stamp, err := store.Stamp(name)
	if err != nil {
		return nil, functionError(name, err)
	}
	t.mu.Lock()
	if e := t.byKey[k]; e != nil && e.Value.(*functionEntry).f.stamp == stamp {
		t.order.MoveToFront(e)
		f := e.Value.(*functionEntry).f
		t.mu.Unlock()
		return f, nil
	}
	t.mu.Unlock()
	dep, err := store.Get(ctx, name)
	if err != nil {
		return nil, functionError(name, err)
	}
	f, err := loadDeployed(tenant, dep)
	if err != nil {
		return nil, functionError(name, err)
	}
	t.keep(k, f)
	return f, nil
}

// deployed is what is deployed now, nil if that is nothing that could have been
// called.
func (t *functionTable) deployed(ctx context.Context, tenant, name string) *deployed {
	f, err := t.get(ctx, tenant, name)
	if err != nil {
		return nil
	}
	return f
}

// loadDeployed makes a deployed of what was kept.
func loadDeployed(tenant string, dep *data.Deployment) (*deployed, error) {
	f := &deployed{name: dep.Name, request: &api.FunctionRequest{}, stamp: dep.Stamp, size: dep.Size}
	// Not strictly: what an older daemon took is not refused now.
	if err := errors.Join(json.Unmarshal(dep.Meta, &f.meta), json.Unmarshal(dep.Body, f.request)); err != nil {
		return nil, &data.CorruptError{Name: dep.Name, Reason: err.Error()}
	}
	modules, main, err := checkRun(runRequest(f.request, &api.InvokeRequest{}))
	if err != nil {
		return nil, &data.CorruptError{Name: dep.Name, Reason: err.Error()}
	}
	f.code, err = isolate.NewFunction(tenant, f.request.Language, modules, main)
	if err != nil {
		return nil, &data.CorruptError{Name: dep.Name, Reason: err.Error()}
	}
	if !f.meta.Snapshot {
		f.code.EvaluateAnew()
	}
	return f, nil
}

// functionError says what is wrong with a deployment that was asked for.
func functionError(name string, err error) error {
	var corrupt *data.CorruptError
	switch {
	case errors.As(err, &corrupt):
		return &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("the deployed function %.64s is damaged: %s", corrupt.Name, corrupt.Reason), Hint: "deploy it again, or delete it"}
	case errors.Is(err, data.ErrNotFound):
		return &api.Error{Code: api.CodeNotFound, Field: "function", Message: fmt.Sprintf("there is no function %.64q", name), Hint: "GET …/functions lists the deployed ones"}
	}
	return err
}

// keep puts a deployment among those used last.
func (t *functionTable) keep(k functionKey, f *deployed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byKey[k]; e != nil {
		t.drop(e)
	}
	t.byKey[k] = t.order.PushFront(&functionEntry{k, f})
	t.bytes += f.size
	for t.bytes > keepFunctions && t.order.Len() > 1 {
		t.drop(t.order.Back())
	}
}

// drop forgets an entry; mu is held.
func (t *functionTable) drop(e *list.Element) {
	x := t.order.Remove(e).(*functionEntry)
	delete(t.byKey, x.key)
	t.bytes -= x.f.size
}

// forget drops what is kept of a deployment that was deleted.
func (t *functionTable) forget(tenant, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byKey[functionKey{tenant, name}]; e != nil {
		t.drop(e)
	}
	if all := t.uses[tenant]; all[name] != nil {
		delete(all, name)
		t.changed(tenant)
	}
}

// used counts a call.
func (t *functionTable) used(ctx context.Context, tenant string, f *deployed) {
	t.load(ctx, tenant)
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.uses[tenant][f.name]
	if u == nil || !u.Created.Equal(f.meta.Created) {
		u = &use{Created: f.meta.Created}
		t.uses[tenant][f.name] = u
	}
	u.Count++
	u.Last = time.Now().UTC()
	t.changed(tenant)
}

// count tells what was counted of a deployment.
func (t *functionTable) count(ctx context.Context, tenant, name string, created time.Time) (n uint64, last time.Time) {
	t.load(ctx, tenant)
	t.mu.Lock()
	defer t.mu.Unlock()
	if u := t.uses[tenant][name]; u != nil && u.Created.Equal(created) {
		return u.Count, u.Last
	}
	return 0, time.Time{}
}

// load reads a tenant's counters once. They are worth less than a call: what
// cannot be read begins anew.
func (t *functionTable) load(ctx context.Context, tenant string) {
	t.mu.Lock()
	known := t.uses[tenant] != nil
	t.mu.Unlock()
	if known {
		return
	}
	read := map[string]*use{}
	raw, err := t.d.data.Deployments(tenant).Uses(ctx)
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &read)
	}
	if err != nil {
		t.d.log.Warn("the counters of deployed functions begin anew", "tenant", tenant, "error", err)
		read = map[string]*use{}
	}
	for name, u := range read {
		if u == nil {
			delete(read, name)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.uses[tenant] == nil {
		t.uses[tenant] = read
	}
}

// changed has the tenant's counters saved before long; mu is held.
func (t *functionTable) changed(tenant string) {
	t.dirty[tenant] = true
	if t.timer == nil {
		t.timer = time.AfterFunc(saveUsesAfter, t.save)
	}
}

// save writes the counters that have changed.
func (t *functionTable) save() {
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	texts := map[string][]byte{}
	for tenant := range t.dirty {
		// Of these types it never fails.
		texts[tenant], _ = json.Marshal(t.uses[tenant])
	}
	clear(t.dirty)
	t.mu.Unlock()
	for tenant, text := range texts {
		if err := t.d.data.Deployments(tenant).SaveUses(context.Background(), text); err != nil {
			t.d.log.Warn("the counters of deployed functions were not saved", "tenant", tenant, "error", err)
		}
	}
}
