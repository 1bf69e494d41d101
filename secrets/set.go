package secrets

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
)

// keepPrevious is how many replaced values of a name are still removed from
// answers: a server may have kept one that it was given.
const keepPrevious = 2

// A Held is a credential as it is now, and what it was before.
type Held struct {
	Value Value
	// Previous are values that were replaced, the latest first.
	Previous []Value
	// Version is another number after each change of the name.
	Version uint64
}

// A Set holds credentials by name. It may be used by many goroutines.
type Set struct {
	mu      sync.RWMutex
	version uint64          // guarded by mu
	values  map[string]Held // guarded by mu
}

// Put adds a credential or replaces the one of that name. Whoever got the old
// one goes on with it.
func (s *Set) Put(name string, v Value) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if v.IsZero() {
		return ErrValue
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values == nil {
		s.values = map[string]Held{}
	}
	old := s.values[name]
	s.version++
	next := Held{Value: v, Version: s.version}
	if !old.Value.IsZero() {
		next.Previous = append(next.Previous, old.Value)
	}
	next.Previous = append(next.Previous, old.Previous...)
	next.Previous = next.Previous[:min(len(next.Previous), keepPrevious)]
	s.values[name] = next
	return nil
}

// Remove takes a credential out; what it was is still removed from answers.
func (s *Set) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.values[name]
	if !ok || old.Value.IsZero() {
		return
	}
	s.version++
	previous := append([]Value{old.Value}, old.Previous...)
	s.values[name] = Held{Previous: previous[:min(len(previous), keepPrevious)], Version: s.version}
}

// Read adds the value that a file holds, and closes the file.
func (s *Set) Read(name string, f *os.File) error {
	defer f.Close()
	if err := CheckName(name); err != nil {
		return err
	}
	// Not by the file's offset: it is shared with whoever opened it, and another
	// process may be given the same file.
	b, err := io.ReadAll(io.NewSectionReader(f, 0, MaxLength+3))
	if err != nil {
		// The file's path may say more than the name does.
		return fmt.Errorf("%w: credential %s cannot be read", ErrValue, name)
	}
	v, err := NewValue(b)
	clear(b)
	if err != nil {
		return fmt.Errorf("credential %s: %w", name, err)
	}
	return s.Put(name, v)
}

// Version is another number after each change.
func (s *Set) Version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// Get returns a credential.
func (s *Set) Get(name string) (Value, error) {
	h := s.Held(name)
	if h.Value.IsZero() {
		return Value{}, fmt.Errorf("%w: %s", ErrUnknown, name)
	}
	return h.Value, nil
}

// Held returns a credential and what it was before. Its Value is zero when
// there is none now.
func (s *Set) Held(name string) Held {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.values[name]
}

// ReadFrame reads a value that comes after its length: four bytes, the most
// significant first.
func ReadFrame(r io.Reader) (Value, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return Value{}, fmt.Errorf("%w: it did not come", ErrValue)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > MaxLength+2 {
		return Value{}, fmt.Errorf("%w: longer than %d bytes", ErrValue, MaxLength)
	}
	b := make([]byte, n)
	defer clear(b)
	if _, err := io.ReadFull(r, b); err != nil {
		return Value{}, fmt.Errorf("%w: it did not come whole", ErrValue)
	}
	return NewValue(b)
}
