package wasmvm

import (
	"errors"

	"sandboxd/isolate/memimage"
)

// A Saved is what an instance was at a moment when nothing ran in it: the pages
// that differ from its image, its globals and its fuel. It does not change, and
// can be loaded into any clean instance over the same image.
type Saved struct {
	delta          *memimage.Delta
	globals        []uint64
	spent, granted int64
	fuel           uint64
}

// Bytes that it takes.
func (s *Saved) Bytes() uint64 { return s.delta.Bytes() }

// Contains tells whether the pages hold b, which a test of cleanness asks.
func (s *Saved) Contains(b []byte) bool { return s.delta.Contains(b) }

// Memory is the size of the linear memory of an instance with it.
func (s *Saved) Memory() uint64 { return s.delta.Size() }

// ErrLarge says that an instance has more pages of its own than were wanted.
var ErrLarge = memimage.ErrLargeDelta

// Save keeps what i is now; more than most bytes of it are ErrLarge. One that is
// dead is not saved: its stack was unwound from outside.
func (i *Instance) Save(most uint64) (*Saved, error) {
	if i.cause != nil {
		return nil, i.cause
	}
	if i.depth != 0 {
		return nil, errUnderWay
	}
	d, err := i.Mem.Delta(most)
	if err != nil {
		return nil, err
	}
	s := &Saved{delta: d, globals: i.Values(), spent: i.spent, granted: i.granted}
	if i.fuel != nil {
		s.fuel = i.fuel.Get()
	}
	return s, nil
}

// Load makes a clean instance what the saved one was. Restore undoes it, unless
// its memory had to grow.
func (i *Instance) Load(s *Saved) error {
	if i.cause != nil {
		return i.cause
	}
	if len(s.globals) != len(i.globals) {
		return errors.New("the globals are another module's")
	}
	if have := i.Mem.Size(); have < s.Memory() {
		if _, ok := i.Mod.Memory().Grow(uint32((s.Memory() - have) / memimage.PageSize)); !ok {
			return &MemoryError{Want: s.Memory(), Limit: have}
		}
	}
	if err := i.Mem.Apply(s.delta); err != nil {
		return err
	}
	for k, g := range i.globals {
		g.Set(s.globals[k])
	}
	i.spent, i.granted = s.spent, s.granted
	if i.fuel != nil {
		i.fuel.Set(s.fuel)
	}
	return nil
}
