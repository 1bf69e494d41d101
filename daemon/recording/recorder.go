package recording

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd/isolate"
)

// A Budget bounds the memory of recordings that are under way.
type Budget struct{ left atomic.Int64 }

// NewBudget makes a budget of so many bytes.
func NewBudget(bytes int64) *Budget {
	b := &Budget{}
	b.left.Store(bytes)
	return b
}

func (b *Budget) take(n int64) bool {
	if b.left.Add(-n) >= 0 {
		return true
	}
	b.left.Add(n)
	return false
}

// A Recorder notes the calls of one run. Its methods may be called at once.
type Recorder struct {
	request  isolate.Request
	identity isolate.Identity
	most     int64 // bytes that the recording may have
	budget   *Budget

	mu         sync.Mutex
	calls      map[int]*Call // guarded by mu
	order      []int         // guarded by mu
	size       int64         // guarded by mu
	taken      int64         // guarded by mu: of budget
	incomplete string        // guarded by mu
}

// callCost is about what a call takes beside its texts.
const callCost = 256

// NewRecorder begins a recording of at most so many bytes. What is asked must be
// deterministic. The caller calls Close when it is done with it.
func NewRecorder(req *isolate.Request, identity isolate.Identity, most int64, budget *Budget) *Recorder {
	r := &Recorder{request: *req, identity: identity, most: most, budget: budget, calls: map[int]*Call{}}
	size := len(req.Input)
	for name, text := range req.Modules {
		size += len(name) + len(text)
	}
	for name, text := range req.Env {
		size += len(name) + len(text)
	}
	r.add(size, "code, input and env")
	return r
}

// add counts bytes; false means that they are too many. r.mu is held, or r is
// new.
func (r *Recorder) add(n int, what string) bool {
	if r.incomplete != "" {
		return false
	}
	switch r.size += int64(n); {
	case r.size > r.most:
		r.incomplete = fmt.Sprintf("with %s it has more than the %d bytes that a recording may have", what, r.most)
	case !r.budget.take(int64(n)):
		r.incomplete = "at the time of " + what + " all recordings under way took as much memory as they may"
	default:
		r.taken += int64(n)
		return true
	}
	// It can be replayed no more: its parts are only a burden.
	r.calls, r.order = map[int]*Call{}, nil
	r.giveBack()
	return false
}

// giveBack ends what r takes of the budget. r.mu is held.
func (r *Recorder) giveBack() {
	r.budget.left.Add(r.taken)
	r.taken = 0
}

// Close gives up what r holds.
func (r *Recorder) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.incomplete == "" {
		r.incomplete = "it was given up"
	}
	r.giveBack()
}

// Asked notes what a call asks.
func (r *Recorder) Asked(c isolate.Call) {
	call := describe(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.add(callCost+len(call.Args), fmt.Sprintf("call %d", c.Nth)) {
		r.calls[c.Nth] = &call
	}
}

// Answered notes that the code gets the answer of call nth next.
func (r *Recorder) Answered(nth int, answer json.RawMessage, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := len(answer)
	if err != nil {
		size = len(err.Error())
	}
	if !r.add(size, fmt.Sprintf("the answer of call %d", nth)) {
		return
	}
	call := r.calls[nth]
	if call == nil {
		r.incomplete = fmt.Sprintf("call %d was answered before it was made", nth)
		return
	}
	r.order = append(r.order, nth)
	if err != nil {
		text := err.Error()
		call.Failed = &text
		return
	}
	if call.Answer = slices.Clone(answer); len(answer) == 0 {
		call.Answer = json.RawMessage("null")
	}
}

// Finish gives the recording of a run that has ended. outcome may be changed
// until it is stored.
func (r *Recorder) Finish(tenant, run, code string, outcome Outcome, now time.Time, age time.Duration) *Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := &Recording{Format: format, Tenant: tenant, RunID: run, Made: now, Expires: now.Add(age), CodeSHA256: code, Identity: r.identity,
		Request: r.request, Order: r.order, Outcome: outcome, Incomplete: r.incomplete}
	if r.incomplete != "" {
		// What is too large is not kept: only that there was such a run.
		rec.Request = isolate.Request{Language: r.request.Language}
		rec.Order = nil
		return rec
	}
	for _, c := range r.calls {
		rec.Calls = append(rec.Calls, *c)
	}
	slices.SortFunc(rec.Calls, func(a, b Call) int { return a.Nth - b.Nth })
	return rec
}
