package isolate

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// quietTime is how long nothing has run when a process gives back what it holds
// only for the next run: a little more than idle VMs are kept for.
const quietTime = 12 * time.Second

// A quiet gives a process's free memory back to the system once nothing has
// begun for a while. Left to itself, the collector would take minutes to find
// that a peak is over. The zero value is ready for use.
type quiet struct {
	begun atomic.Uint64
	armed atomic.Bool
}

// begin notes that something runs.
func (q *quiet) begin() {
	q.begun.Add(1)
	if q.armed.CompareAndSwap(false, true) {
		q.wait()
	}
}

func (q *quiet) wait() {
	seen := q.begun.Load()
	time.AfterFunc(quietTime, func() {
		if q.begun.Load() != seen {
			q.wait()
			return
		}
		q.armed.Store(false)
		debug.FreeOSMemory()
	})
}
