package isolate

import (
	"container/heap"
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"time"
)

// randomness is the run's own: from the kernel, or from the seed.
type randomness struct{ seeded *rand.ChaCha8 }

func newRandomness(seed *uint64) randomness {
	if seed == nil {
		return randomness{}
	}
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], *seed)
	return randomness{rand.NewChaCha8(key)}
}

// Read fills b.
func (r randomness) Read(b []byte) {
	if r.seeded != nil {
		_, _ = r.seeded.Read(b) // never fails
		return
	}
	_, _ = crand.Read(b) // never fails: it ends the process instead
}

// Uint64 gives a number.
func (r randomness) Uint64() uint64 {
	if r.seeded != nil {
		return r.seeded.Uint64()
	}
	return rand.Uint64()
}

// A clock is the run's own: the host's, or one that starts at a given time and
// moves only when the code sleeps.
type clock struct {
	started time.Time
	fixed   *time.Time
	slept   time.Duration
}

func newClock(fixed *time.Time, started time.Time) clock {
	return clock{started: started, fixed: fixed}
}

func (c *clock) virtual() bool { return c.fixed != nil }

// elapsed is the time since the run began.
func (c *clock) elapsed() time.Duration {
	if c.fixed != nil {
		return c.slept
	}
	return time.Since(c.started)
}

// advance moves a virtual clock.
func (c *clock) advance(to time.Duration) { c.slept = max(c.slept, to) }

func (c *clock) wall() time.Time {
	if c.fixed != nil {
		return c.fixed.Add(c.slept)
	}
	return time.Now()
}

// resolution of the monotonic clock: finer ones help to measure neighbours.
const resolution = int64(100 * time.Microsecond)

func (c *clock) now() (realtime, monotonic int64) {
	return c.wall().UnixNano(), int64(c.elapsed()) / resolution * resolution
}

// timers are the pending timers of a run, the next one first.
type timers struct {
	byID  map[int64]*timer
	queue timerQueue
	count uint64
}

type timer struct {
	id    int64
	at    time.Duration
	order uint64 // equal times fire in the order in which they were set
	index int
}

func (t *timers) set(id int64, at time.Duration) {
	t.clear(id)
	if t.byID == nil {
		t.byID = map[int64]*timer{}
	}
	t.count++
	x := &timer{id: id, at: at, order: t.count}
	t.byID[id] = x
	heap.Push(&t.queue, x)
}

func (t *timers) clear(id int64) {
	if x := t.byID[id]; x != nil {
		heap.Remove(&t.queue, x.index)
		delete(t.byID, id)
	}
}

// next tells when the next timer is due.
func (t *timers) next() (time.Duration, bool) {
	if len(t.queue) == 0 {
		return 0, false
	}
	return t.queue[0].at, true
}

// due takes a timer whose time has come.
func (t *timers) due(now time.Duration) (id int64, ok bool) {
	if at, any := t.next(); !any || at > now {
		return 0, false
	}
	id = t.queue[0].id
	t.clear(id)
	return id, true
}

// timerQueue implements heap.Interface.
type timerQueue []*timer

func (q timerQueue) Len() int { return len(q) }

func (q timerQueue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].order < q[j].order
}

func (q timerQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *timerQueue) Push(x any) {
	t := x.(*timer)
	t.index = len(*q)
	*q = append(*q, t)
}

// Pop implements heap.Interface.
func (q *timerQueue) Pop() any {
	old := *q
	t := old[len(old)-1]
	*q = old[:len(old)-1]
	return t
}
