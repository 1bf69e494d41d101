package daemon

import (
	"container/list"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// What the registry keeps of runs that have ended.
const (
	keepRuns   = 4096
	keepEvents = 64 << 20 // bytes of all ended runs' events and output together
	keepDenied = 256      // denials of one run
	keepCalls  = 1024     // calls of one run
	keepLines  = 10000    // log lines of one run
)

// A run is one run of code and its record.
type run struct {
	id, tenant string
	kind       string // of its lines in the audit log
	codeSHA    string
	request    string // hash of all that was asked for, when the caller gave the id
	caller     policy.Caller
	events     eventLog
	cancel     context.CancelCauseFunc
	done       chan struct{}
	kept       int64 // guarded by registry.mu: what it takes of keepEvents

	mu      sync.Mutex
	record  api.Run                        // guarded by mu; complete when done is closed
	tools   map[string]chan api.ToolAnswer // guarded by mu
	ncalls  int                            // guarded by mu
	trimmed bool                           // guarded by mu
	// Output, written piece by piece, until it goes to the record.
	stdout, stderr strings.Builder // guarded by mu
}

// size is about what the run takes in memory.
func (r *run) size() int64 {
	n := r.events.size()
	r.mu.Lock()
	defer r.mu.Unlock()
	n += int64(len(r.record.Result) + len(r.record.Stdout) + len(r.record.Stderr))
	for i := range r.record.Logs {
		n += int64(len(r.record.Logs[i].Message) + len(r.record.Logs[i].Data))
	}
	return n
}

// trim gives up events, output and result; the rest of the record stays.
func (r *run) trim() {
	r.events.drop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Result, r.record.Stdout, r.record.Stderr, r.record.Logs = nil, "", "", nil
	r.trimmed = true
}

func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// snapshot is a copy of the record.
func (r *run) snapshot() api.Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.record
	c.Logs, c.Denials, c.Calls = slices.Clone(c.Logs), slices.Clone(c.Denials), slices.Clone(c.Calls)
	return c
}

// denied puts a denial on record and tells those who follow.
func (r *run) denied(d api.Denial) {
	if d.Time.IsZero() {
		d.Time = time.Now().UTC()
	}
	r.mu.Lock()
	room := len(r.record.Denials) < keepDenied
	if room {
		r.record.Denials = append(r.record.Denials, d)
	}
	r.mu.Unlock()
	if room {
		r.events.append(api.Event{Type: api.EventDenied, Time: d.Time, Denial: &d})
	}
}

// called puts a host call on record.
func (r *run) called(c api.CallRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.record.Calls) < keepCalls {
		r.record.Calls = append(r.record.Calls, c)
	}
}

// A runKey names a run: an id that a caller chose is its tenant's own, so that
// no tenant can take the ids of another or learn of them.
type runKey struct{ tenant, id string }

func (r *run) key() runKey { return runKey{r.tenant, r.id} }

// A registry holds the runs under way and the last that ended.
type registry struct {
	mu     sync.Mutex
	runs   map[runKey]*run        // guarded by mu
	byID   map[string][]*run      // guarded by mu: of all tenants
	order  *list.List             // guarded by mu: *run, newest at the front
	places map[*run]*list.Element // guarded by mu
	events *list.List             // guarded by mu: ended runs with events, newest at the front
	bytes  int64                  // guarded by mu: of those events
	total  uint64                 // guarded by mu
	active int                    // guarded by mu
}

func newRegistry() *registry {
	return &registry{runs: map[runKey]*run{}, byID: map[string][]*run{}, order: list.New(), places: map[*run]*list.Element{}, events: list.New()}
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// checkID says what is wrong with a caller's own id.
func checkID(field, id string) error {
	if id == "" || idPattern.MatchString(id) {
		return nil
	}
	e := api.Invalid(field, fmt.Sprintf("%q is not an id", id))
	e.Allowed = idPattern.String()
	return e
}

// newID makes an id that nobody can guess.
func newID(prefix string) string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return prefix + hex.EncodeToString(b[:])
}

// add registers a new run; existing is the one that has its id already.
func (g *registry) add(r *run) (existing *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old, ok := g.runs[r.key()]; ok {
		return old
	}
	g.runs[r.key()] = r
	g.byID[r.id] = append(g.byID[r.id], r)
	g.places[r] = g.order.PushFront(r)
	g.total++
	g.active++
	return nil
}

// find is the tenant's run with that id, nil if there is none.
func (g *registry) find(tenant, id string) *run {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.runs[runKey{tenant, id}]
}

// finished moves a run to those that have ended and gives up what is too much.
func (g *registry) finished(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active--
	r.kept = r.size()
	g.bytes += r.kept
	g.events.PushFront(r)
	for g.bytes > keepEvents && g.events.Len() > 1 {
		g.giveUp(g.events.Back())
	}
	for e := g.order.Back(); e != nil && len(g.runs) > keepRuns; {
		prev := e.Prev()
		if old := e.Value.(*run); old.ended() && old != r {
			g.remove(old)
		}
		e = prev
	}
}

func (g *registry) giveUp(e *list.Element) {
	old := e.Value.(*run)
	g.bytes -= old.kept
	old.trim()
	g.events.Remove(e)
}

func (g *registry) remove(r *run) {
	delete(g.runs, r.key())
	if same := slices.DeleteFunc(g.byID[r.id], func(o *run) bool { return o == r }); len(same) > 0 {
		g.byID[r.id] = same
	} else {
		delete(g.byID, r.id)
	}
	g.order.Remove(g.places[r])
	delete(g.places, r)
	for e := g.events.Back(); e != nil; e = e.Prev() {
		if e.Value.(*run) == r {
			g.giveUp(e)
			break
		}
	}
}

// forget removes a run that did not start, so that its id can be tried again.
func (g *registry) forget(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.runs[r.key()] == r {
		g.remove(r)
	}
}

// get finds a run of the tenants that may be seen. Others are as if they were
// not there.
func (g *registry) get(id string, visible func(tenant string) bool) (*run, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var found []*run
	for _, r := range g.byID[id] {
		if visible(r.tenant) {
			found = append(found, r)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	if len(found) > 1 {
		return nil, &api.Error{Code: api.CodeConflict, Field: "tenant", Message: fmt.Sprintf("%d tenants have a run %.130q", len(found), id), Hint: "say whose with ?tenant="}
	}
	return nil, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no run %.130q, or its record is no longer kept", id), Hint: "the audit log keeps every run"}
}

// list returns runs, newest first, that match.
func (g *registry) list(limit int, match func(*run) bool) []*run {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*run
	for e := g.order.Front(); e != nil && len(out) < limit; e = e.Next() {
		if r := e.Value.(*run); match(r) {
			out = append(out, r)
		}
	}
	return out
}

func (g *registry) counts() (active int, total uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.active, g.total
}

// running returns the runs that have not ended.
func (g *registry) running() []*run {
	return g.list(keepRuns*2, func(r *run) bool { return !r.ended() })
}
