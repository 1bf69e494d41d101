package service

import (
	"context"
	"sync"
)

// Slots bound how many calls are under way at once. Where there is more than
// one, no tenant ever has them all.
type Slots struct {
	total int

	mu      sync.Mutex
	used    int
	tenants map[string]int
	changed chan struct{} // closed when a slot becomes free
}

// NewSlots makes n slots, at least 1.
func NewSlots(n int) *Slots {
	return &Slots{total: max(1, n), tenants: map[string]int{}, changed: make(chan struct{})}
}

// Take waits for a slot; give must be called once. The error is that of ctx.
func (s *Slots) Take(ctx context.Context, tenant string) (give func(), err error) {
	for {
		s.mu.Lock()
		if s.used < s.total && s.tenants[tenant] < max(1, s.total-1) {
			s.used++
			s.tenants[tenant]++
			s.mu.Unlock()
			return func() { s.give(tenant) }, nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Slots) give(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if s.tenants[tenant]--; s.tenants[tenant] == 0 {
		delete(s.tenants, tenant)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}
