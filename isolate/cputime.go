package isolate

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A cpuTime measures the processor time that a run uses, as the kernel counts
// it for the thread that the run is on. What other processes take in between is
// not in it, nor what the run waits.
type cpuTime struct {
	ctx    context.Context // of the run
	tenant string

	used    time.Duration
	since   time.Duration // the thread's time at start
	running bool
	turn    bool // it is the run's turn
	yielded time.Time
	// look, if not nil, is told at each yield what has been used: between two,
	// nothing but compiled code may have run.
	look func(used time.Duration)
}

// start waits for the run's turn and binds the goroutine to its thread until
// stop.
func (c *cpuTime) start() {
	if ourTurns != nil {
		// Without it the run goes on to find that its time is over.
		c.turn = ourTurns.take(c.ctx, c.tenant, c.used)
	}
	runtime.LockOSThread()
	c.running, c.since, c.yielded = true, threadTime(), time.Now()
}

// stop ends what start began; it may be called twice.
func (c *cpuTime) stop() {
	if !c.running {
		return
	}
	used := threadTime() - c.since
	c.used += used
	c.running = false
	runtime.UnlockOSThread()
	if c.turn {
		c.turn = false
		ourTurns.give(c.tenant, used)
	}
}

// now is the time used so far.
func (c *cpuTime) now() time.Duration {
	if !c.running {
		return c.used
	}
	return c.used + threadTime() - c.since
}

// slice is how long a run computes before it lets others have the processor.
// A yield of a bound goroutine costs two switches of threads.
const slice = 2 * time.Millisecond

// yield lets others have the processor if it is time.
func (c *cpuTime) yield() {
	if c.look != nil {
		c.look(c.now())
	}
	if time.Since(c.yielded) < slice {
		return
	}
	if c.turn {
		ourTurns.incoming()
	}
	// To whatever is no run: one that has come in, the garbage collector.
	runtime.Gosched()
	if c.turn && ourTurns.wanted() {
		c.stop()
		c.start()
	}
	c.yielded = time.Now()
}

func threadTime() time.Duration {
	var ts unix.Timespec
	// It does not fail for the calling thread.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
