package wasmvm

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrPoolClosed says that the pool was closed.
var ErrPoolClosed = errors.New("the engine is closed")

// PoolOptions of a Pool of VMs of type V.
type PoolOptions[V any] struct {
	// Make makes a clean VM, Reset makes a used one provably as new or says why
	// it cannot, Close ends one.
	Make  func(ctx context.Context) (V, error)
	Reset func(V) error
	Close func(V)
	// Prepare makes a clean VM quicker. Cool gives back what of that is had again
	// at once, Trim all of it.
	Prepare, Cool, Trim func(V) error
	// Idle is how many clean VMs are made ahead, and kept however long nobody
	// wants them.
	Idle int
	// TrimAfter is how long a VM may be idle before it is trimmed; 0 means
	// DefaultTrimAfter. It is cooled after a tenth of that.
	TrimAfter time.Duration
}

// DefaultTrimAfter is how long a VM stays ready for its next call.
const DefaultTrimAfter = 10 * time.Second

// A Pool keeps clean VMs.
type Pool[V any] struct {
	opts PoolOptions[V]

	mu      sync.Mutex
	idle    []kept[V] // the last one was used last
	trimmer *time.Timer
	closed  bool
	filling bool
	group   sync.WaitGroup
	stats   PoolStats
}

// kept is a clean VM that nobody uses.
type kept[V any] struct {
	vm    V
	since time.Time
	stage int // 1 if it was cooled, 2 if trimmed
}

// PoolStats counts what a Pool did.
type PoolStats struct {
	Idle, Live      int
	Created, Resets uint64
	// Cooled and Trims count VMs that were idle.
	Cooled, Trims uint64
}

// NewPool makes a pool, which is empty.
func NewPool[V any](o PoolOptions[V]) *Pool[V] {
	if o.TrimAfter == 0 {
		o.TrimAfter = DefaultTrimAfter
	}
	return &Pool[V]{opts: o}
}

// Fill makes clean VMs until as many are kept as should be.
func (p *Pool[V]) Fill(ctx context.Context) error {
	for {
		p.mu.Lock()
		enough := p.closed || len(p.idle) >= p.opts.Idle
		p.mu.Unlock()
		if enough {
			return nil
		}
		vm, err := p.New(ctx)
		if err != nil {
			return err
		}
		if err := p.opts.Prepare(vm); err != nil {
			p.Discard(vm)
			return err
		}
		p.keep(vm)
	}
}

// refill is Fill in the background, once at a time.
func (p *Pool[V]) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.filling || len(p.idle) >= p.opts.Idle {
		return
	}
	p.filling = true
	p.group.Go(func() {
		// A failure shows when a call wants a VM.
		_ = p.Fill(context.Background())
		p.mu.Lock()
		p.filling = false
		p.mu.Unlock()
	})
}

// keep puts a clean VM among the idle ones, or closes it if there are enough.
func (p *Pool[V]) keep(vm V) {
	p.mu.Lock()
	if p.closed || len(p.idle) >= p.opts.Idle {
		p.mu.Unlock()
		p.Discard(vm)
		return
	}
	p.idle = append(p.idle, kept[V]{vm: vm, since: time.Now()})
	if p.trimmer == nil {
		p.trimmer = time.AfterFunc(p.opts.TrimAfter/10, p.trim)
	}
	p.mu.Unlock()
}

// trim gives back what VMs hold that nobody has wanted for a while, and that the
// next call in one takes again as page faults.
func (p *Pool[V]) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trimmer = nil
	if p.closed {
		return
	}
	now := time.Now()
	stages := [...]struct {
		after time.Duration
		do    func(V) error
		count *uint64
	}{{p.opts.TrimAfter / 10, p.opts.Cool, &p.stats.Cooled}, {p.opts.TrimAfter, p.opts.Trim, &p.stats.Trims}}
	next := time.Duration(0)
	for i := range p.idle {
		k := &p.idle[i]
		for ; k.stage < len(stages); k.stage++ {
			s := stages[k.stage]
			if left := s.after - now.Sub(k.since); left > 0 {
				if next == 0 || left < next {
					next = left
				}
				break
			}
			// An error would be the same again.
			if err := s.do(k.vm); err == nil {
				*s.count++
			}
		}
	}
	if next > 0 {
		p.trimmer = time.AfterFunc(next, p.trim)
	}
}

// Get gives a clean VM: a kept one or a new one. The caller must Put it back.
func (p *Pool[V]) Get(ctx context.Context) (V, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		var none V
		return none, ErrPoolClosed
	}
	if n := len(p.idle); n > 0 {
		vm := p.idle[n-1].vm
		p.idle[n-1] = kept[V]{}
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return vm, nil
	}
	p.mu.Unlock()
	return p.New(ctx)
}

// Put takes a VM back. It is reset if that makes it provably as new, else it
// is closed and another one is made, in the background.
func (p *Pool[V]) Put(vm V) {
	if err := p.opts.Reset(vm); err != nil {
		p.Discard(vm)
		p.refill()
		return
	}
	p.mu.Lock()
	p.stats.Resets++
	p.mu.Unlock()
	p.keep(vm)
}

// New makes a VM that was never used, where Get may give one that was reset.
// The caller must Put or Discard it.
func (p *Pool[V]) New(ctx context.Context) (V, error) {
	vm, err := p.opts.Make(ctx)
	if err == nil {
		p.mu.Lock()
		p.stats.Created++
		p.stats.Live++
		p.mu.Unlock()
	}
	return vm, err
}

// Discard closes a VM instead of resetting it.
func (p *Pool[V]) Discard(vm V) {
	p.opts.Close(vm)
	p.mu.Lock()
	p.stats.Live--
	p.mu.Unlock()
}

// Stats tells what the pool holds.
func (p *Pool[V]) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Idle = len(p.idle)
	return s
}

// Close closes all VMs that are idle; those that are out must not be used any
// more.
func (p *Pool[V]) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	idle := p.idle
	p.idle = nil
	if p.trimmer != nil {
		p.trimmer.Stop()
	}
	p.mu.Unlock()
	p.group.Wait()
	for _, k := range idle {
		p.Discard(k.vm)
	}
}
