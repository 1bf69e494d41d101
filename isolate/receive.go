package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Most of the time a worker has one small run and then nothing. It is done by the
// goroutine that received it, on the thread that the message woke, and while
// nothing runs that thread waits for the next one itself: no second thread wakes,
// and nothing is handed from one to the other. While the run computes nobody
// receives. Once it waits, or at one of its yields finds that something has come
// in, another goroutine takes over, for good: the first one is spare when its run
// has ended. That other one waits in the runtime's poller as long as anything
// runs, and runs that come to it meanwhile get goroutines of their own.

// serve receives until the socket is closed or another goroutine does.
func (w *workerSide) serve() {
	for {
		run, err := w.receive()
		if err != nil {
			w.ended <- err
			return
		}
		if run == nil {
			continue
		}
		run()
		if !w.again() {
			return
		}
		w.await()
	}
}

// receive takes one frame. If it is a run that the caller shall do itself, then
// nobody receives any more.
func (w *workerSide) receive() (run func(), err error) {
	payload, files, err := w.conn.Recv()
	closeAll(files)
	if err != nil {
		return nil, endOf(err)
	}
	f, err := decodeFrame(payload, string([]rune{frameRun, frameAnswer, frameCancel, frameCode, frameForget}))
	if err != nil {
		return nil, err
	}
	if f.kind == frameRun {
		run, err = w.start(f)
	} else {
		err = w.take(f)
	}
	w.took()
	return run, err
}

// lingers is how long a worker looks for the next run before it sleeps: as long
// as the calls of one client are apart that waits for each.
const lingers = 400 * time.Microsecond

// await looks for the next run for a while, where nothing else runs and that was
// worth it lately. A processor that has slept takes as long to wake as a small
// run, and the run then twice as long, because its caches are cold.
func (w *workerSide) await() {
	if w.linger {
		w.linger = false
		if w.patience.any() {
			w.patience.learn(w.conn.Await(lingers))
		}
	}
}

// again tells whether the one that had received receives again, after its run.
func (w *workerSide) again() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.receiving {
		return false
	}
	w.receiving = true
	w.linger = w.linger && len(w.runs) == 0
	w.poll()
	return true
}

// follow has somebody receive, if nobody does.
func (w *workerSide) follow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.followLocked()
}

func (w *workerSide) followLocked() {
	if w.receiving {
		return
	}
	w.receiving = true
	w.poll()
	w.spawn(w.serve)
}

// poll has who receives leave the processor to runs, if there are any; the lock
// is held.
func (w *workerSide) poll() {
	if len(w.runs) == 0 {
		return
	}
	if err := w.conn.UsePoller(); err != nil {
		// Slower, but it goes on: the runtime notices a thread that waits.
		fmt.Fprintln(os.Stderr, "isolate worker:", err)
	}
}

// ends forgets a run. With the last one, who receives has the processor.
func (w *workerSide) ends(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.runs, id)
	if w.alone && len(w.runs) == 0 {
		w.conn.LeavePoller()
	}
}

// take handles a frame that belongs to a run. It does not block.
func (w *workerSide) take(f *frame) error {
	if f.kind == frameForget {
		return w.takeForget(f)
	}
	w.mu.Lock()
	r := w.runs[f.run]
	w.mu.Unlock()
	switch {
	case r == nil: // it has ended meanwhile
	case f.kind == frameCancel:
		r.cancel(nil)
	case f.kind == frameCode:
		m, err := decode[codeMessage](f.data)
		if err != nil {
			return err
		}
		r.codes <- m // one place, and sent once
	default:
		r.answer(f)
	}
	return nil
}

// incoming waits until a frame was taken, if there is one. A process with one
// processor looks for what has come in only while no goroutine can run: with a
// run that computes and yields, that was every 10 ms.
func (w *workerSide) incoming() {
	w.mu.Lock()
	if !w.receiving {
		if !w.conn.Pending() {
			w.mu.Unlock()
			return
		}
		w.followLocked()
	}
	if w.read == nil {
		w.read = make(chan struct{})
	}
	read := w.read
	w.mu.Unlock()
	if w.conn.Readable() {
		<-read
	}
}

// took tells incoming that a frame was read.
func (w *workerSide) took() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.read != nil {
		close(w.read)
		w.read = nil
	}
}

// start begins a run. What it returns, if anything, does it.
func (w *workerSide) start(f *frame) (func(), error) {
	job, err := decode[jobMessage](f.data)
	if err != nil || job.Request == nil {
		return nil, errors.Join(errFrame, err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &workerRun{w: w, id: f.run, cancel: cancel, most: job.Request.Limits.Memory + MaxAnswer, codes: make(chan *codeMessage, 1), calls: map[uint64]func(json.RawMessage, error){}}
	do := func() {
		defer cancel(nil)
		if job.Function != "" {
			r.runFunction(ctx, job)
			return
		}
		runOn(ctx, w.engines, job, r, r.finish)
	}
	// Where others have come in as well, who has used the least goes first: see
	// turns.
	more := w.conn.Pending()
	w.mu.Lock()
	w.runs[r.id] = r
	mine := w.alone && len(w.runs) == 1 && !more
	if mine {
		w.receiving, w.linger = false, job.Linger
	} else if w.alone {
		w.poll()
	}
	w.mu.Unlock()
	if mine {
		return do, nil
	}
	w.spawn(do)
	return nil, nil
}

// spawn does what a go statement does. One goroutine is kept for the next time: to
// make its stack large enough took more of a small call than its code.
func (w *workerSide) spawn(f func()) {
	select {
	case w.runner <- f:
		return
	default:
	}
	go func() {
		f()
		for w.waits.CompareAndSwap(false, true) {
			f = nil // it holds all of its run
			f = <-w.runner
			w.waits.Store(false)
			f()
		}
	}()
}
