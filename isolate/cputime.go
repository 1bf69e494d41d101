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
	lane    int  // of ourTurns
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
		c.turn = ourTurns.take(c.ctx, c.lane, c.tenant, c.used)
	}
	runtime.LockOSThread()
	if c.lane == longRuns {
		setSlice(longSlice)
	}
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
	if c.lane == longRuns {
		setSlice(0)
	}
	runtime.UnlockOSThread()
	if c.turn {
		c.turn = false
		ourTurns.give(c.lane, c.tenant, used)
	}
}

// end is stop, when the run is over.
func (c *cpuTime) end() {
	c.stop()
	if c.lane == longRuns {
		c.lane = shortRuns
		ourTurns.shorten()
	}
}

// pause is stop for a run that waits: for something that comes in, or until then.
func (c *cpuTime) pause() {
	c.stop()
	if ourTurns != nil {
		ourTurns.waiting()
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
	switch {
	case !c.turn:
	case c.lane == shortRuns && c.now() >= shortTime:
		c.lengthen()
	case ourTurns.wanted(c.lane):
		c.stop()
		c.start()
	}
	c.yielded = time.Now()
}

// large is for a run that is about to do something large in one go.
func (c *cpuTime) large() {
	if c.turn && c.lane == shortRuns {
		c.lengthen()
	}
}

// lengthen makes the run one of the long ones.
func (c *cpuTime) lengthen() {
	c.stop()
	c.lane = longRuns
	ourTurns.waiting()
	ourTurns.lengthen()
	c.start()
}

func threadTime() time.Duration {
	var ts unix.Timespec
	// It does not fail for the calling thread.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// longSlice is how long the kernel lets the thread of a long run compute in one
// go. It is more than what threads have that ask for nothing, and who asks for
// less gets a processor the sooner when it wakes: the daemon, a small call. And it
// is what the garbage collector may have to wait for a run that has none.
const longSlice = 4 * time.Millisecond

// setSlice asks for such a time for this thread; 0 is the kernel's own.
func setSlice(d time.Duration) {
	a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Runtime: uint64(d)}
	// Kernels before 6.12 do not heed it, and nothing depends on it.
	_ = unix.SchedSetAttr(0, &a, 0)
}
