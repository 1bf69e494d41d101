package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/names"
	"sandboxd/policy"
)

// A tenant is everything the proxy holds for one: rules, limits, what is under
// way, names it looked up. Nothing of it is shared with another.
type tenant struct {
	name  string
	host  control.Limits        // for whom the policy says nothing
	meter atomic.Pointer[meter] // step 2
	open  atomic.Int64          // connections
	rules atomic.Pointer[ruleset]

	signing chan struct{} // bounds bodies that are held to be signed

	recorder   *rate.Limiter // of refusals by the tenant's limits
	suppressed atomic.Int64

	mu      sync.Mutex
	gone    bool
	live    map[*flight]struct{}
	lookups map[string]lookup
	// synthetic names and addresses of DNS answers
	synthetic map[string]netip.Addr
	services  map[string]netip.Addr // of hosts with named services
	order     []string
	nextAddr  netip.Addr
}

// A flight is a request or tunnel under way. Its cancel cuts it.
type flight struct {
	link    *link // nil for an isolate's
	allowed func(*ruleset) bool
	cancel  context.CancelCauseFunc
}

func newTenant(name string, limits control.Limits) *tenant {
	t := &tenant{
		name: name, host: limits, recorder: rate.NewLimiter(10, 10), signing: make(chan struct{}, maxSigningEach),
		live: map[*flight]struct{}{}, lookups: map[string]lookup{}, synthetic: map[string]netip.Addr{},
	}
	t.setLimits(policy.EgressLimits{})
	return t
}

// setLimits replaces the tenant's own limits; what is not set is the host's.
func (t *tenant) setLimits(l policy.EgressLimits) {
	l = l.Filled(policy.EgressLimits{Rate: t.host.Rate, Burst: t.host.Burst, Connections: t.host.Connections})
	old := t.meter.Load()
	if old != nil && old.limits == l {
		return // the rate's allowance goes on, too
	}
	t.meter.Store(newMeter("", l, old))
}

// charge counts a request or lookup, whatever it is for.
func (t *tenant) charge() *limitError {
	m := t.meter.Load()
	if m.rate.Allow() {
		return nil
	}
	return m.exceeded("rate", perSecond(m.limits.Rate), time.Second)
}

// mayRecord says whether a refusal by a limit of the tenant's is put on record,
// and how many were not since the last.
func (t *tenant) mayRecord() (suppressed int64, ok bool) {
	if !t.recorder.Allow() {
		t.suppressed.Add(1)
		return 0, false
	}
	return t.suppressed.Swap(0), true
}

// enter counts a connection, or refuses it (step 2).
func (t *tenant) enter() *limitError {
	m := t.meter.Load()
	if t.open.Add(1) > int64(m.limits.Connections) {
		t.open.Add(-1)
		return m.exceeded("connections", strconv.Itoa(m.limits.Connections), time.Second)
	}
	return nil
}

func (t *tenant) leave() { t.open.Add(-1) }

// setRules swaps the rules in one step and cuts what they no longer grant
// (step 23). What is granted as before goes on.
func (t *tenant) setRules(list []policy.Rule, pools func(*rule) *pool) error {
	old := t.rules.Load()
	set, err := compile(list, old, pools)
	if err != nil {
		// Not understood means not granted.
		set = &ruleset{}
	}
	t.mu.Lock()
	t.rules.Store(set)
	t.lookups = map[string]lookup{}
	var cut []*flight
	for f := range t.live {
		if !f.allowed(set) {
			cut = append(cut, f)
		}
	}
	t.mu.Unlock()
	for _, f := range cut {
		f.cancel(errRevoked)
	}
	if old != nil {
		for _, r := range old.rules {
			if set.same(&r.source) != r {
				r.pool.close()
			}
		}
	}
	return err
}

// start registers a flight unless the rules have changed meanwhile so that it
// is no longer granted.
func (t *tenant) start(f *flight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || f.link != nil && f.link.ended.Load() || !f.allowed(t.rules.Load()) {
		return false
	}
	t.live[f] = struct{}{}
	return true
}

func (t *tenant) end(f *flight) {
	t.mu.Lock()
	delete(t.live, f)
	t.mu.Unlock()
}

// cutLink cuts what is under way for one link, whose end is marked already.
func (t *tenant) cutLink(l *link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.live {
		if f.link == l {
			f.cancel(errRevoked)
		}
	}
}

// remove takes every grant away and cuts everything.
func (t *tenant) remove() {
	t.mu.Lock()
	t.gone = true
	t.mu.Unlock()
	_ = t.setRules(nil, nil)
}

// maxSynthetic bounds the names of one tenant; a wildcard has endlessly many.
const maxSynthetic = 4096

// address gives a granted name its synthetic address. The address means
// nothing: what a connection is for is read from Host or SNI.
func (t *tenant) address(h names.Host, from netip.Prefix) netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a, ok := t.services[h.Name]; ok {
		return a
	}
	if a, ok := t.synthetic[h.Name]; ok {
		return a
	}
	if len(t.order) >= maxSynthetic {
		delete(t.synthetic, t.order[0])
		t.order = t.order[1:]
	}
	if t.nextAddr = t.nextAddr.Next(); !from.Contains(t.nextAddr) {
		t.nextAddr = from.Masked().Addr().Next()
	}
	t.synthetic[h.Name] = t.nextAddr
	t.order = append(t.order, h.Name)
	return t.nextAddr
}

// A lookup is a vetted answer, pinned for a short while.
type lookup struct {
	addrs   []netip.Addr
	expires time.Time
}

const (
	pinFor     = 15 * time.Second
	maxLookups = 1024
)

func (t *tenant) pinned(key string) ([]netip.Addr, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.lookups[key]
	if !ok || time.Now().After(l.expires) {
		return nil, false
	}
	return l.addrs, true
}

func (t *tenant) pin(key string, addrs []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lookups) >= maxLookups {
		t.lookups = map[string]lookup{}
	}
	t.lookups[key] = lookup{addrs, time.Now().Add(pinFor)}
}

var errRevoked = fmt.Errorf("the grant was withdrawn")
