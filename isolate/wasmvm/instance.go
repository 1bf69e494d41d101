package wasmvm

import (
	"context"
	"errors"
	"fmt"

	"github.com/tetratelabs/wazero/api"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasmbin"
)

// DefaultQuantum is 60 to 200 µs of work.
const DefaultQuantum = 1_000_000

// A State is what an instance begins with, beside the image of its memory. It is
// JSON, to be passed on with the image.
type State struct {
	// Globals are the exported mutable globals, Fuel the one that is counted
	// down; empty: none is.
	Globals []Global
	Fuel    string
}

// A Global is a mutable global and what it held when the image was taken.
type Global struct {
	Name  string
	Value uint64
}

// NewState has the globals of a module, whose values are not known yet.
func NewState(info *wasmbin.Info, metered bool) State {
	var s State
	for _, g := range info.ExportedGlobals {
		s.Globals = append(s.Globals, Global{Name: g.Name})
	}
	if metered {
		s.Fuel = FuelExport
	}
	return s
}

// A MemoryError ends an instance whose memory would have grown beyond its limit.
type MemoryError struct{ Want, Limit uint64 }

func (e *MemoryError) Error() string {
	return fmt.Sprintf("memory of %d bytes wanted, %d allowed", e.Want, e.Limit)
}

// ErrClosed is why an instance is dead that was closed.
var ErrClosed = errors.New("the instance is closed")

// An Instance is a module's instance whose memory is an image's, or is to
// become one. It is not safe for concurrent use.
type Instance struct {
	Mod api.Module
	Mem *memimage.Memory

	frames []*frame
	depth  int // calls under way

	state   *State
	globals []api.MutableGlobal
	fuel    api.MutableGlobal // nil if nothing is counted
	quantum int64
	spent   int64 // fuel of finished quanta
	granted int64 // fuel given with the last refill
	cause   error // why it is dead
}

// New makes an instance over mem, with the globals of s and fuel for quantum.
// Where mem has an image, the instance has its size.
func (c *Code) New(ctx context.Context, mem *memimage.Memory, s *State, quantum int64) (*Instance, error) {
	mod, err := c.Instantiate(ctx, mem)
	if err != nil {
		return nil, err
	}
	i := &Instance{Mod: mod, Mem: mem, state: s, quantum: quantum}
	if err := i.begin(); err != nil {
		mod.Close(ctx)
		return nil, err
	}
	return i, nil
}

func (i *Instance) begin() error {
	for _, g := range i.state.Globals {
		mg, ok := i.Mod.ExportedGlobal(g.Name).(api.MutableGlobal)
		if !ok {
			return fmt.Errorf("global %s is not there", g.Name)
		}
		i.globals = append(i.globals, mg)
	}
	if i.state.Fuel != "" {
		fuel, ok := i.Mod.ExportedGlobal(i.state.Fuel).(api.MutableGlobal)
		if !ok {
			return fmt.Errorf("global %s is not there", i.state.Fuel)
		}
		i.fuel = fuel
	}
	i.give()
	img := i.Mem.Image()
	if img == nil {
		return nil
	}
	if have := uint64(i.Mod.Memory().Size()); have < img.Size() {
		if _, ok := i.Mod.Memory().Grow(uint32((img.Size() - have) / memimage.PageSize)); !ok {
			return errors.New("the image does not fit the memory")
		}
	}
	i.restoreGlobals()
	return nil
}

func (i *Instance) restoreGlobals() {
	for k, g := range i.globals {
		g.Set(i.state.Globals[k].Value)
	}
	i.spent = 0
	i.give()
}

// give fills the fuel up to one quantum.
func (i *Instance) give() {
	i.granted = i.quantum
	if i.fuel != nil {
		i.fuel.Set(uint64(i.quantum))
	}
}

// Refill counts what was spent of a quantum and gives the next one.
func (i *Instance) Refill() {
	if i.fuel != nil {
		i.spent += i.granted - int64(i.fuel.Get())
	}
	i.give()
}

// Charge takes fuel for what the host does for the guest, and tells whether it is
// used up: then the host must do what an instance does that is out of fuel.
func (i *Instance) Charge(units int64) (empty bool) {
	if i.fuel == nil {
		return false
	}
	left := int64(i.fuel.Get()) - units
	i.fuel.Set(uint64(left))
	return left < 0
}

// Fuel is what the guest has used of it.
func (i *Instance) Fuel() int64 {
	if i.fuel == nil {
		return 0
	}
	return i.spent + i.granted - int64(i.fuel.Get())
}

// Values are what the globals of the state hold now.
func (i *Instance) Values() []uint64 {
	var out []uint64
	for _, g := range i.globals {
		out = append(out, g.Get())
	}
	return out
}

// LimitMemory lets the memory grow to limit minus used bytes, which are held
// for the guest elsewhere. A guest that wants more is ended by a MemoryError.
func (i *Instance) LimitMemory(limit, used uint64) {
	i.Mem.SetLimit(limit-min(used, limit), func(want uint64) {
		i.Abort(&MemoryError{Want: want + used, Limit: limit})
	})
}

// aborted is what Abort panics with.
type aborted struct{}

func (aborted) Error() string { return "aborted" }

// Abort ends the instance from within a host function: wazero unwinds the guest.
func (i *Instance) Abort(err error) {
	i.Fail(err)
	panic(aborted{})
}

// Fail ends the instance and says why it is dead, which may have had another
// reason before.
func (i *Instance) Fail(err error) error {
	if i.cause == nil {
		i.cause = err
	}
	return i.cause
}

// Err says why the instance is dead, nil while it lives.
func (i *Instance) Err() error { return i.cause }

// A frame is what a call takes: the interpreter's machine stack, and parameters.
type frame struct {
	api.Function
	stack [8]uint64
}

// ErrNoEntry says that a module has none of the exports that are called.
var ErrNoEntry = errors.New("the module has no entry for calls")

// Call calls an export by its place in what Rewriting was told. A parameter or
// result is as of wazero; without one it is zero. A call within a call has a
// machine stack of its own, which is kept for the next one at this depth.
func (i *Instance) Call(ctx context.Context, export int, params ...uint64) (uint64, error) {
	if i.cause != nil {
		return 0, i.cause
	}
	if i.depth == len(i.frames) {
		f := i.Mod.ExportedFunction(dispatcher)
		if f == nil {
			return 0, ErrNoEntry
		}
		i.frames = append(i.frames, &frame{Function: f})
	}
	f := i.frames[i.depth]
	f.stack[0] = uint64(export)
	clear(f.stack[1+copy(f.stack[1:], params):])
	i.depth++
	err := f.CallWithStack(ctx, f.stack[:])
	i.depth--
	if i.cause != nil {
		err = i.cause
	}
	return f.stack[0], err
}

// deep is how much memory a call that recurses far writes beside what others do.
const deep = 64 << 10

var errUnderWay = errors.New("a call is under way")

// Restore makes the instance as new, or says why it cannot: its memory with its
// size, its globals and its fuel. Code of a module that is Resettable can change
// nothing else. One that was ended in the middle is not taken: its stack was
// unwound from outside. far tells that the machine stack may have become large,
// which it stays.
func (i *Instance) Restore() (far bool, err error) {
	if i.cause != nil {
		return false, i.cause
	}
	if i.depth != 0 {
		return false, errUnderWay
	}
	added, err := i.Mem.Reset(deep)
	if err != nil {
		return false, err
	}
	far = added >= deep
	if far {
		i.frames = nil
	}
	i.restoreGlobals()
	return far, nil
}

// Cool gives back the machine stacks of the instance, which is as new, and what
// of its memory not every call writes. It is had again for some microseconds.
func (i *Instance) Cool() error {
	i.frames = nil
	return i.Mem.Cool()
}

// Trim gives back what the instance, which is as new, holds to be quicker.
func (i *Instance) Trim() error {
	i.frames = nil
	return i.Mem.Drop()
}

// Close ends the instance and gives its memory back.
func (i *Instance) Close() {
	i.Fail(ErrClosed)
	i.Mod.Close(context.Background())
}
