package quickjs

import "sandboxd/isolate/wasmvm"

// An Evaluated is what code has made of a clean VM. It holds no values of ours: to
// find something again, the prelude must have kept it.
type Evaluated struct{ *wasmvm.Saved }

// ErrLarge says that a VM has more pages of its own than were wanted.
var ErrLarge = wasmvm.ErrLarge

// Save keeps what the VM is now, in at most so many bytes of pages.
func (vm *VM) Save(most uint64) (*Evaluated, error) {
	s, err := vm.inst.Save(most)
	if err != nil {
		return nil, err
	}
	return &Evaluated{s}, nil
}

// Load makes a clean VM, before Begin, what the one that was saved was. memory
// is the limit of the linear memory, of which that is a part.
func (vm *VM) Load(s *Evaluated, memory uint64) error {
	if s.Memory() > memory {
		return &MemoryError{Want: s.Memory(), Limit: memory}
	}
	return vm.inst.Load(s.Saved)
}

// Seed is the state of Math.random, which Begin sets: it is another one once a
// number was drawn.
func (vm *VM) Seed() (uint64, error) {
	n, ok := vm.mod.Memory().ReadUint64Le(vm.eng.boot.random)
	if !ok {
		return 0, vm.fail(errGuest("random state outside its memory"))
	}
	return n, nil
}

// JobPending tells whether a promise reaction waits to be run.
func (vm *VM) JobPending() (bool, error) {
	n, err := vm.get(fnJobPending)
	return n != 0, err
}
