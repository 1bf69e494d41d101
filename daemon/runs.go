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
	codeSHA    string
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

// A registry holds the runs under way and the last that ended.
type registry struct {
	mu     sync.Mutex
	runs   map[string]*run          // guarded by mu
	order  *list.List               // guarded by mu: ids, newest at the front
	places map[string]*list.Element // guarded by mu
	events *list.List               // guarded by mu: ended runs with events, newest at the front
	bytes  int64                    // guarded by mu: of those events
	total  uint64                   // guarded by mu
	active int                      // guarded by mu
}

func newRegistry() *registry {
	return &registry{runs: map[string]*run{}, order: list.New(), places: map[string]*list.Element{}, events: list.New()}
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// checkID says what is wrong with a caller's own id.
func checkID(field, id string) error {
	if id == "" || idPattern.MatchString(id) {
		return nil
	}
	e := api.Invalid(field, "is not an id")
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
	if old, ok := g.runs[r.id]; ok {
		return old
	}
	g.runs[r.id] = r
	g.places[r.id] = g.order.PushFront(r.id)
	g.total++
	g.active++
	return nil
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
		if old := g.runs[e.Value.(string)]; old.ended() && old != r {
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
	delete(g.runs, r.id)
	g.order.Remove(g.places[r.id])
	delete(g.places, r.id)
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
	if g.runs[r.id] == r {
		g.remove(r)
	}
}

// get finds a run.
func (g *registry) get(id string) (*run, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, ok := g.runs[id]; ok {
		return r, nil
	}
	return nil, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no run %.130q, or its record is no longer kept", id), Hint: "the audit log keeps every run"}
}

// list returns runs, newest first, that match.
func (g *registry) list(limit int, match func(*run) bool) []*run {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*run
	for e := g.order.Front(); e != nil && len(out) < limit; e = e.Next() {
		if r := g.runs[e.Value.(string)]; match(r) {
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
