package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// MaxSpares is the largest number of jails that are kept ready.
const MaxSpares = 64

// A Network is a way out that was made ahead, for a jail that has no tenant yet.
type Network interface {
	// NetNS is what the jail's processes are born in.
	NetNS() *os.File
	Resolvers() []string
	CABundle() []byte
	// Close takes it down. It is called if no jail comes of it.
	Close() error
}

// Spares says how the jails that are kept ready are doing.
type Spares struct {
	Size, Ready  int
	Made, Taken  uint64 // since the start
	Missed       uint64 // taken from an empty pool: made while somebody waited
	Failed, Died uint64
	LastError    string
}

// A Spare is a jail that is nobody's yet. Create uses it up.
type Spare struct {
	Network Network // nil: a network namespace without a way out
	place   *place
}

// pool keeps spares ready. They are made one at a time, and not while the Manager
// starts or ends a jail or has just started a command: whoever waits for that has
// the processors.
type pool struct {
	m       *Manager
	size    int
	network func(context.Context) (Network, error)
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu    sync.Mutex
	cond  *sync.Cond // what follows has changed
	ready []*Spare   // guarded by mu, oldest first
	busy  int        // guarded by mu: what must not be disturbed
	ended bool       // guarded by mu
	count Spares     // guarded by mu
	last  uint64     // guarded by mu: number of the last place
}

func newPool(m *Manager) *pool {
	p := &pool{m: m, stop: func() {}}
	p.cond = sync.NewCond(&p.mu)
	return p
}

// KeepSpares begins to keep size jails ready, MaxSpares at most, each with a
// network made by network (nil: none). It is called once, after Sweep.
func (m *Manager) KeepSpares(size int, network func(context.Context) (Network, error)) error {
	if size < 0 || size > MaxSpares {
		return &SpecError{Field: "spares", Message: fmt.Sprintf("%d is not between 0 and %d", size, MaxSpares)}
	}
	p := m.pool
	ctx, stop := context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		stop()
		return ErrGone
	}
	p.size, p.network, p.stop = size, network, stop
	if size > 0 {
		p.done.Go(func() { p.fill(ctx) })
	}
	return nil
}

// TakeSpare takes a jail that is ready, nil if there is none. It is for Create,
// or to be given back by Discard.
func (m *Manager) TakeSpare() *Spare {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.size == 0 {
		return nil
	}
	if len(p.ready) == 0 {
		p.count.Missed++
		return nil
	}
	s := p.ready[0]
	p.ready = slices.Delete(p.ready, 0, 1)
	p.count.Taken++
	p.cond.Broadcast()
	return s
}

// Spares says how many are ready and what became of the others.
func (m *Manager) Spares() Spares {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.count
	c.Size, c.Ready = p.size, len(p.ready)
	return c
}

// Backoff after a spare could not be made.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// fill makes spares until the pool ends.
func (p *pool) fill(ctx context.Context) {
	retry := firstRetry
	for p.wanted() {
		s, err := p.make(ctx)
		if err == nil {
			retry = firstRetry
			p.add(s)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		p.failed(err)
		timer := time.NewTimer(retry)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		retry = min(2*retry, lastRetry)
	}
}

// wanted waits until one more spare is wanted and nobody is disturbed by it; it
// is false when the pool has ended.
func (p *pool) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.ended && (len(p.ready) >= p.size || p.busy > 0) {
		p.cond.Wait()
	}
	return !p.ended
}

// spareName is the name of a spare's cgroup: no tenant can have it.
func (p *pool) spareName() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	return fmt.Sprintf("%s%d", sparePrefix, p.last)
}

const sparePrefix = "_"

func (p *pool) make(ctx context.Context) (_ *Spare, err error) {
	name := p.spareName()
	s := &Spare{place: &place{m: p.m, cgroup: p.m.jails.child(name)}}
	var netNS *os.File
	var resolvers []string
	var bundle []byte
	if p.network != nil {
		if s.Network, err = p.network(ctx); err != nil {
			return nil, named("network", err)
		}
		netNS, resolvers, bundle = s.Network.NetNS(), s.Network.Resolvers(), s.Network.CABundle()
	}
	err = s.place.build(netNS)
	if err == nil {
		err = p.m.do([]step{{"layer", func() (err error) { s.place.layer, err = p.m.makeLayer(resolvers, bundle); return err }}}, nil)
	}
	if err != nil {
		s.Discard()
		return nil, err
	}
	return s, nil
}

// add makes s ready, and sees to it that one whose process ends is not.
func (p *pool) add(s *Spare) {
	p.mu.Lock()
	p.count.Made++
	p.ready = append(p.ready, s)
	p.cond.Broadcast()
	ended := p.ended
	p.mu.Unlock()
	if ended {
		p.drain()
		return
	}
	go func() {
		<-s.place.init.gone
		p.mu.Lock()
		i := slices.Index(p.ready, s)
		if i >= 0 {
			p.ready = slices.Delete(p.ready, i, i+1)
			p.count.Died++
			p.cond.Broadcast()
		}
		p.mu.Unlock()
		if i >= 0 {
			p.m.log.Warn("a jail that was kept ready has ended by itself")
			s.Discard()
		}
	}()
}

func (p *pool) failed(err error) {
	p.mu.Lock()
	p.count.Failed++
	again := p.count.LastError == err.Error()
	p.count.LastError = err.Error()
	p.mu.Unlock()
	if !again {
		p.m.log.Warn("a jail could not be made ahead", "error", err)
	}
}

// disturb says that something begins which spares must not slow down; the
// function that it returns says that it is over.
func (p *pool) disturb() (over func()) {
	p.mu.Lock()
	p.busy++
	p.mu.Unlock()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		p.busy--
		if p.busy == 0 {
			p.cond.Broadcast()
		}
		p.mu.Unlock()
	})
}

// close ends all spares.
func (p *pool) close() error {
	p.mu.Lock()
	p.ended = true
	p.stop()
	p.cond.Broadcast()
	p.mu.Unlock()
	p.done.Wait()
	return p.drain()
}

func (p *pool) drain() error {
	p.mu.Lock()
	ready := p.ready
	p.ready = nil
	p.mu.Unlock()
	var errs []error
	for _, s := range ready {
		errs = append(errs, s.Discard())
	}
	return errors.Join(errs...)
}

// Discard takes down a spare that no jail came of.
func (s *Spare) Discard() error {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	err := s.place.discard(ctx)
	if s.Network != nil {
		err = errors.Join(err, s.Network.Close())
	}
	if err != nil {
		s.place.m.log.Error("a jail that was kept ready left something behind", "error", err)
	}
	return err
}

// failed takes down what a jail that could not be built of s has not.
func (s *Spare) failed() {
	if s.Network == nil {
		return
	}
	if err := s.Network.Close(); err != nil {
		s.place.m.log.Error("a jail that could not be built left something behind", "error", err)
	}
}
