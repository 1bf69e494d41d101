package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// tenantTable holds the jails: at most one for each tenant.
type tenantTable struct {
	d *Daemon

	mu    sync.Mutex
	slots map[string]*slot // guarded by mu
}

// A slot is one tenant's place. Who holds its turn may create the jail.
type slot struct {
	turn chan struct{} // capacity 1
	refs int           // guarded by tenantTable.mu
	jail *tenantJail   // guarded by tenantTable.mu
}

func newTenantTable(d *Daemon) *tenantTable {
	return &tenantTable{d: d, slots: map[string]*slot{}}
}

func (t *tenantTable) ref(tenant string) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.slots[tenant]
	if !ok {
		s = &slot{turn: make(chan struct{}, 1)}
		t.slots[tenant] = s
	}
	s.refs++
	return s
}

func (t *tenantTable) unref(tenant string, s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.refs--
	if s.refs == 0 && s.jail == nil {
		delete(t.slots, tenant)
	}
}

// find returns the tenant's jail or nil.
func (t *tenantTable) find(tenant string) *tenantJail {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slots[tenant]; s != nil {
		return s.jail
	}
	return nil
}

// all returns the jails in the order of their tenants' names.
func (t *tenantTable) all() []*tenantJail {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*tenantJail
	for _, s := range t.slots {
		if s.jail != nil {
			out = append(out, s.jail)
		}
	}
	slices.SortFunc(out, func(a, b *tenantJail) int { return strings.Compare(a.tenant, b.tenant) })
	return out
}

// acquire returns the tenant's jail, made on first use and awake; the caller
// must call release when its request is over.
func (t *tenantTable) acquire(ctx context.Context, tenant string, caller policy.Caller, req *api.JailRequest) (j *tenantJail, created bool, err error) {
	s := t.ref(tenant)
	defer t.unref(tenant, s)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	if j := t.find(tenant); j != nil {
		if err := j.wait(ctx); err != nil {
			return nil, false, err
		}
		if err := j.use(ctx); !errors.Is(err, errEnding) {
			return j, false, err
		}
		// It is about to end; the next one takes its place then.
		if err := j.awaitGone(ctx); err != nil {
			return nil, false, err
		}
	}
	if !t.d.begin() {
		return nil, false, errStopping
	}
	if j, err = t.create(ctx, s, tenant, caller, req); err != nil {
		return nil, false, err
	}
	return j, true, j.use(ctx)
}

// create makes the tenant's jail; the caller has its turn and d.begin was true.
func (t *tenantTable) create(ctx context.Context, s *slot, tenant string, caller policy.Caller, req *api.JailRequest) (*tenantJail, error) {
	j, err := t.d.createJail(ctx, tenant, caller, req)
	if err != nil {
		t.d.work.Done()
		return nil, err
	}
	return t.takeUp(s, j)
}

// takeUp makes a new jail the tenant's, unless it may be none any more.
func (t *tenantTable) takeUp(s *slot, j *tenantJail) (*tenantJail, error) {
	t.mu.Lock()
	s.jail = j
	t.mu.Unlock()
	go t.watch(s, j)
	if t.d.stopping.Load() {
		// It came too late for closeAll to see it.
		go j.end("daemon_stop")
		return nil, errStopping
	}
	if !t.d.mayHaveJail(j.tenant) {
		// Likewise for endJails: the policy was replaced while it was made.
		go j.end("policy")
		return nil, &api.Error{Code: api.CodeDenied, Message: "the policy was replaced meanwhile, and the new one grants the tenant no jail"}
	}
	return j, nil
}

// lease ends the tenant's jail with the connection: the jail that it has then,
// if it is still leased to it.
func (t *tenantTable) lease(j *tenantJail, p *peer) {
	j.mu.Lock()
	j.lease = p
	j.mu.Unlock()
	p.whenClosed(func() {
		if j := t.find(j.tenant); j != nil && j.leasedTo() == p {
			j.end("lease")
		}
	})
}

func (j *tenantJail) leasedTo() *peer {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lease
}

// replace ends the tenant's jail, runs change, and makes a jail like it again,
// which lives no longer than the old one would have. Without a jail it only runs
// change.
func (t *tenantTable) replace(ctx context.Context, tenant string, caller policy.Caller, cause string, change func() error) error {
	s := t.ref(tenant)
	defer t.unref(tenant, s)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	old := t.find(tenant)
	if old == nil {
		return change()
	}
	if err := old.destroy(ctx, cause); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	left := time.Until(old.ends()).Round(time.Second)
	if left < time.Second || !t.d.begin() {
		return nil // the next use makes one
	}
	req := old.request
	req.MaxLifetime, req.ResetRoot = policy.Duration(left), false
	j, err := t.create(ctx, s, tenant, caller, &req)
	if err != nil {
		return err
	}
	if p := old.leasedTo(); p != nil {
		t.lease(j, p)
	}
	return nil
}

// remove ends the tenant's jail and deletes all that it owned, also what an
// earlier one left: the workspace.
func (t *tenantTable) remove(ctx context.Context, tenant string) error {
	s := t.ref(tenant)
	defer t.unref(tenant, s)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if j := t.find(tenant); j != nil {
		if err := j.destroy(ctx, "destroyed"); err != nil {
			return err
		}
	}
	return t.d.jails.Forget(tenant)
}

// existing is acquire for requests that must not make a jail.
func (t *tenantTable) existing(ctx context.Context, tenant string) (*tenantJail, error) {
	j := t.find(tenant)
	if j == nil {
		return nil, t.d.noJail(tenant)
	}
	if err := j.use(ctx); err != nil {
		if errors.Is(err, errEnding) {
			return nil, t.d.noJail(tenant)
		}
		return nil, err
	}
	return j, nil
}

// noJail says that the tenant has none, and what became of the last.
func (d *Daemon) noJail(tenant string) error {
	e := &api.Error{Code: api.CodeNotFound, Message: "the tenant has no jail", Hint: "PUT …/jail or any command creates it"}
	if d.jails == nil {
		return e
	}
	if last, ok := d.jails.LastEnd(tenant); ok {
		e.Message += fmt.Sprintf("; the last one ended at %s: %s", last.Time.Format(time.RFC3339), last.Cause)
	}
	return e
}

// watch takes the jail out of the table when it has ended, whatever ended it.
func (t *tenantTable) watch(s *slot, j *tenantJail) {
	<-j.jail.Done()
	j.clean()
	t.mu.Lock()
	s.jail = nil
	if s.refs == 0 {
		delete(t.slots, j.tenant)
	}
	t.mu.Unlock()
	close(j.gone)
	t.d.work.Done()
}

// closeAll destroys every jail.
func (t *tenantTable) closeAll(ctx context.Context, cause string) error {
	var wg sync.WaitGroup
	jails := t.all()
	errs := make([]error, len(jails))
	for i, j := range jails {
		wg.Go(func() { errs[i] = j.destroy(ctx, cause) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
