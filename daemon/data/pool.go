package data

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sandboxd/policy"
)

// maxReaders is the number of queries that one tenant can have under way; there
// is one writer and one user of the key-value store.
const maxReaders = 4

func (k key) most() int {
	if k.kind == reader {
		return maxReaders
	}
	return 1
}

// acquire returns a connection that is the caller's until release. It waits
// while the tenant has all that it may have in use, or the store all that it
// may have open; idle connections of others make room, longest idle first.
func (s *Store) acquire(ctx context.Context, k key) (*conn, error) {
	if err := policy.ValidTenant(k.tenant); err != nil {
		return nil, failure(KindParams, "%v", err)
	}
	for {
		c, old, wait, err := s.take(k)
		if old != nil {
			old.close()
		}
		if err != nil || c != nil {
			return c, err
		}
		if wait == nil { // room for a new one was taken
			return s.opened(ctx, k)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("data: waiting for a connection: %w", ctx.Err())
		}
	}
}

// take takes an idle connection, or room for a new one (only nils, or with an
// old connection to be closed for it), or returns what to wait for.
func (s *Store) take(k key) (c, old *conn, wait <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, nil, ErrClosed
	case s.removing[k.tenant]:
		return nil, nil, nil, ErrRemoving
	case s.inUse[k] >= k.most():
		return nil, nil, s.changed, nil
	}
	for i, c := range slices.Backward(s.idle) { // the warmest first
		if c.key == k {
			s.idle = slices.Delete(s.idle, i, i+1)
			s.inUse[k]++
			return c, nil, nil, nil
		}
	}
	if s.open >= s.opts.MaxOpen {
		if len(s.idle) == 0 {
			return nil, nil, s.changed, nil
		}
		old = s.idle[0]
		s.idle = slices.Delete(s.idle, 0, 1)
		s.open--
	}
	s.inUse[k]++
	s.open++
	return nil, old, nil, nil
}

// opened opens the connection for which take made room.
func (s *Store) opened(ctx context.Context, k key) (*conn, error) {
	c, err := s.openOrCreate(ctx, k)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		s.freed(k)
		return nil, err
	}
	return c, nil
}

// openOrCreate makes an empty database for a reader that is the first to come.
func (s *Store) openOrCreate(ctx context.Context, k key) (*conn, error) {
	if k.kind == reader {
		_, err := os.Lstat(filepath.Join(s.dir, k.tenant, k.file()))
		if os.IsNotExist(err) {
			w, err := s.openConn(ctx, key{k.tenant, writer})
			if err != nil {
				return nil, err
			}
			w.close()
		} else if err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
	}
	return s.openConn(ctx, k)
}

// release gives a connection back.
func (s *Store) release(c *conn) {
	keep := !c.spoilt && !c.broken
	if !keep {
		c.close() // before others may have its place, and without the lock
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case keep && !s.closed:
		s.idle = append(s.idle, c)
	case keep:
		c.close()
		fallthrough
	default:
		s.open--
	}
	s.freed(c.key)
}

// freed notes that a connection is no longer in use and wakes who waits. The
// caller holds mu.
func (s *Store) freed(k key) {
	if s.inUse[k]--; s.inUse[k] == 0 {
		delete(s.inUse, k)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// RemoveTenant deletes all data of a tenant, when what is under way is done. It
// is no error if there is none.
func (s *Store) RemoveTenant(ctx context.Context, tenant string) error {
	if err := policy.ValidTenant(tenant); err != nil {
		return failure(KindParams, "%v", err)
	}
	if err := s.beginRemoval(ctx, tenant); err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.removing, tenant)
		delete(s.totals, tenant)
	}()
	if err := os.RemoveAll(filepath.Join(s.dir, tenant)); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return nil
}

// beginRemoval keeps the tenant's data from further use and waits until nothing
// uses it.
func (s *Store) beginRemoval(ctx context.Context, tenant string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.removing[tenant] {
		return ErrRemoving
	}
	s.removing[tenant] = true
	for s.busy(tenant) {
		wait := s.changed
		s.mu.Unlock()
		var err error
		select {
		case <-wait:
		case <-ctx.Done():
			err = fmt.Errorf("data: waiting for the tenant's statements to end: %w", ctx.Err())
		}
		s.mu.Lock()
		if err != nil {
			delete(s.removing, tenant)
			return err
		}
	}
	s.idle = slices.DeleteFunc(s.idle, func(c *conn) bool {
		if c.key.tenant != tenant {
			return false
		}
		c.close()
		s.open--
		return true
	})
	return nil
}

func (s *Store) busy(tenant string) bool {
	for k := range s.inUse {
		if k.tenant == tenant {
			return true
		}
	}
	return false
}
