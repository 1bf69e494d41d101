package proxy

import (
	"context"
	"errors"
	"sync"

	"sandboxd/netproxy/internal/control"
)

// A recorder hands decisions to the daemon, several at a time: while it puts
// some on record the next gather, so that a busy proxy asks it seldom. Nothing
// is carried out before it is on record (step 22).
type recorder struct {
	backend Backend
	ended   chan struct{} // closed when nothing is handed over any more

	mu     sync.Mutex
	work   *sync.Cond // there is something in the queue, or closed
	room   *sync.Cond // there is room in the queue, or closed
	queue  []entry
	closed bool
}

// An entry is a decision; somebody waits for it on told, or nobody does.
type entry struct {
	d    control.Decision
	told chan error
}

const (
	// maxQueued bounds what may wait: decisions are refused above it, so that
	// nothing passes unrecorded, and reports of what has ended wait.
	maxQueued = 8192
	// maxHanded bounds one message.
	maxHanded = 256
)

func newRecorder(b Backend) *recorder {
	r := &recorder{backend: b, ended: make(chan struct{})}
	r.work, r.room = sync.NewCond(&r.mu), sync.NewCond(&r.mu)
	go r.run()
	return r
}

var tolds = sync.Pool{New: func() any { return make(chan error, 1) }}

// errUnrecorded says that a decision is not on record.
var errUnrecorded = errors.New("not on record")

// decide returns when the decision is on record; with an error it may not be
// carried out.
func (r *recorder) decide(ctx context.Context, d *control.Decision) error {
	told, ok := tolds.Get().(chan error)
	if !ok {
		return errUnrecorded
	}
	r.mu.Lock()
	if r.closed || len(r.queue) >= maxQueued {
		r.mu.Unlock()
		tolds.Put(told)
		return errUnrecorded
	}
	r.queue = append(r.queue, entry{*d, told})
	r.work.Signal()
	r.mu.Unlock()
	select {
	case err := <-told:
		tolds.Put(told)
		return err
	case <-ctx.Done():
		return errUnrecorded // told is not used again: an answer may still come
	}
}

// finish hands a report over; it waits only while the queue is full.
func (r *recorder) finish(d *control.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed && len(r.queue) >= maxQueued {
		r.room.Wait()
	}
	if !r.closed {
		r.queue = append(r.queue, entry{d: *d})
		r.work.Signal()
	}
}

func (r *recorder) run() {
	defer close(r.ended)
	var batch []entry
	var list []control.Decision
	for {
		r.mu.Lock()
		for !r.closed && len(r.queue) == 0 {
			r.work.Wait()
		}
		if len(r.queue) == 0 {
			r.mu.Unlock()
			return
		}
		n := min(len(r.queue), maxHanded)
		batch = append(batch[:0], r.queue[:n]...)
		rest := copy(r.queue, r.queue[n:])
		clear(r.queue[rest:])
		r.queue = r.queue[:rest]
		r.room.Broadcast()
		r.mu.Unlock()
		list = list[:0]
		for i := range batch {
			list = append(list, batch[i].d)
		}
		r.hand(batch, list)
	}
}

// hand passes a batch on and tells those who wait. Reports of what has ended are
// lost with a record that cannot be written, which the record itself says when it
// can be again.
func (r *recorder) hand(batch []entry, list []control.Decision) {
	errs := r.backend.Record(context.Background(), list)
	for i := range batch {
		if batch[i].told == nil {
			continue
		}
		if errs == nil {
			batch[i].told <- nil
		} else {
			batch[i].told <- errs[i]
		}
	}
}

// close hands over what is left.
func (r *recorder) close() {
	r.mu.Lock()
	r.closed = true
	r.work.Broadcast()
	r.room.Broadcast()
	r.mu.Unlock()
	<-r.ended
}
