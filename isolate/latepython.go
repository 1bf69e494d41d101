package isolate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"sandboxd/isolate/cpython"
)

// latePython is the pool's Python interpreter. Without a cache it takes long to
// make: until it is there the workers have none, and then each is replaced by
// one that has.
type latePython struct {
	done chan struct{} // closed when it is there, or never will be

	mu       sync.Mutex
	snapshot *cpython.Snapshot
	err      error // why there is none
	step     string
	since    time.Time
}

// errNoPython says that the guest is not installed.
var errNoPython = errors.New("its interpreter is not installed here; `make guests` fetches it")

func newLatePython() *latePython { return &latePython{done: make(chan struct{}), since: time.Now()} }

// get is the snapshot if there is one now.
func (l *latePython) get() *cpython.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.snapshot
}

// wait waits for the interpreter, and says why there is none.
func (l *latePython) wait(ctx context.Context) error {
	select {
	case <-l.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// doing says what is being done for it and how far that is; empty if nothing is.
func (l *latePython) doing() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.step == "" {
		return ""
	}
	return fmt.Sprintf("Python: %s, for %d s", l.step, int(time.Since(l.since).Seconds()))
}

func (l *latePython) settle(s *cpython.Snapshot, err error) {
	l.mu.Lock()
	l.snapshot, l.err, l.step = s, err, ""
	l.mu.Unlock()
	close(l.done)
}

func (l *latePython) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.snapshot == nil {
		return nil
	}
	err := l.snapshot.Close()
	l.snapshot = nil
	return err
}

// preparePython takes the snapshot that is kept in dir, or begins to make one.
func (p *workerPool) preparePython(dir string) error {
	o, err := bootOptions(p.cfg.GuestDir, dir)
	if missing := new(GuestError); errors.As(err, &missing) && errors.Is(err, os.ErrNotExist) {
		p.log.Warn("there is no Python in isolates", "error", err)
		p.python.settle(nil, errNoPython)
		return nil
	}
	if err != nil {
		return err
	}
	if s, err := cpython.Kept(o); err == nil {
		p.python.settle(s, nil)
		return nil
	}
	p.group.Go(func() { p.bootPython(o, dir) })
	return nil
}

// sayAgain is how often a long step is mentioned.
const sayAgain = 5 * time.Second

func (p *workerPool) bootPython(o cpython.BootOptions, dir string) {
	l, start := p.python, time.Now()
	o.Progress = func(what string, step, steps int) {
		l.mu.Lock()
		l.step, l.since = fmt.Sprintf("step %d of %d, %s", step, steps, what), time.Now()
		l.mu.Unlock()
		p.log.Info("the Python interpreter is being prepared; JavaScript does not wait for it", "step", step, "of", steps, "doing", what)
		p.tellPreparing(fmt.Sprintf("Python is being prepared, step %d of %d: %s", step, steps, what))
	}
	again := time.NewTicker(sayAgain)
	defer again.Stop()
	go func() {
		for {
			select {
			case <-l.done:
				return
			case <-again.C:
				p.log.Info("the Python interpreter is still being prepared", "doing", l.doing())
				p.tellPreparing(l.doing())
			}
		}
	}()
	s, err := cpython.Boot(p.ctx, o)
	if err == nil {
		err = openToRead(dir)
	}
	if err != nil {
		if p.ctx.Err() == nil {
			p.log.Error("there is no Python in isolates", "error", err)
			p.tellPreparing(fmt.Sprintf("Python could not be prepared: %s", err))
		}
		if s != nil {
			err = errors.Join(err, s.Close())
		}
		l.settle(nil, fmt.Errorf("its interpreter could not be started: %w", err))
		return
	}
	took := time.Since(start).Round(time.Millisecond)
	p.log.Info("the Python interpreter is prepared", "took", took)
	l.settle(s, nil)
	p.tellPreparing(fmt.Sprintf("Python is ready, after %s", took))
}

func (p *workerPool) tellPreparing(text string) {
	if p.cfg.Preparing != nil && text != "" {
		p.cfg.Preparing(text)
	}
}

// renew replaces a worker that has no Python; the old one ends with its runs. It
// stays where there is none to be had.
func (p *workerPool) renew(i int, old *process) *process {
	if p.python.get() == nil {
		return old
	}
	w, err := p.start(p.ctx, i, kindShared)
	if err != nil {
		if p.ctx.Err() == nil {
			p.log.Error("an isolate worker with Python cannot be started", "worker", i, "error", err)
		}
		return old
	}
	p.install(i, w)
	p.group.Go(func() {
		p.mu.Lock()
		idle := make(chan struct{})
		if old.load == 0 {
			close(idle)
		} else {
			old.idle = idle
		}
		p.mu.Unlock()
		select {
		case <-idle:
		case <-old.dead:
		case <-p.ctx.Done():
		}
		old.kill("another one has its place", nil)
		old.wait()
	})
	return w
}
