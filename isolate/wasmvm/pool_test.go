package wasmvm

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// A fake is a VM that notes what is done to it.
type fake struct{ used, cool, trimmed, closed bool }

var errGrown = errors.New("it has grown")

type fakes struct {
	mu  sync.Mutex
	all []*fake
}

func (f *fakes) count(is func(*fake) bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, vm := range f.all {
		if is(vm) {
			n++
		}
	}
	return n
}

func newFakes(idle int, after time.Duration) (*fakes, *Pool[*fake]) {
	f := &fakes{}
	set := func(what func(*fake)) func(*fake) error {
		return func(vm *fake) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			what(vm)
			return nil
		}
	}
	closeIt, reset := set(func(vm *fake) { vm.closed = true }), set(func(vm *fake) { vm.cool, vm.trimmed = false, false })
	return f, NewPool(PoolOptions[*fake]{
		Make: func(context.Context) (*fake, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			vm := &fake{}
			f.all = append(f.all, vm)
			return vm, nil
		},
		Reset: func(vm *fake) error {
			if vm.used {
				return errGrown
			}
			return reset(vm)
		},
		Close:   func(vm *fake) { _ = closeIt(vm) },
		Prepare: set(func(*fake) {}),
		Cool:    set(func(vm *fake) { vm.cool = true }),
		Trim:    set(func(vm *fake) { vm.trimmed = true }),
		Idle:    idle, TrimAfter: after,
	})
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func TestPoolReplaces(t *testing.T) {
	f, p := newFakes(2, time.Hour)
	if err := p.Fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats(); s.Idle != 2 || s.Live != 2 || s.Created != 2 {
		t.Fatalf("%+v", s)
	}
	vm, err := p.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	vm.used = true
	p.Put(vm)
	if !vm.closed {
		t.Error("a VM that cannot be reset is not closed")
	}
	waitFor(t, "another one in its place", func() bool { return p.Stats().Idle == 2 })
	p.Close()
	if n := f.count(func(vm *fake) bool { return !vm.closed }); n != 0 || p.Stats().Live != 0 {
		t.Errorf("%d VMs outlive the pool, %+v", n, p.Stats())
	}
	if _, err := p.Get(t.Context()); !errors.Is(err, ErrPoolClosed) {
		t.Errorf("a closed pool: %v", err)
	}
}

// TestPoolShrinks: after a burst the usual number is kept, and trimmed after a
// while.
func TestPoolShrinks(t *testing.T) {
	f, p := newFakes(2, 20*time.Millisecond)
	defer p.Close()
	var out []*fake
	for range 6 {
		vm, err := p.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, vm)
	}
	for _, vm := range out {
		p.Put(vm)
	}
	if n := p.Stats().Live; n != 2 {
		t.Errorf("%d VMs are kept, not 2", n)
	}
	waitFor(t, "two VMs, trimmed", func() bool { s := p.Stats(); return s.Live == 2 && s.Idle == 2 && s.Trims == 2 })
	if n := f.count(func(vm *fake) bool { return vm.cool && vm.trimmed && !vm.closed }); n != 2 {
		t.Errorf("%d are trimmed", n)
	}
	vm, err := p.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.Put(vm)
	waitFor(t, "the used one trimmed again", func() bool { return p.Stats().Trims == 3 })
}
