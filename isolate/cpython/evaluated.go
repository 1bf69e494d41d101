package cpython

import (
	"errors"

	"sandboxd/isolate/wasmvm"
)

// An Evaluated is what code has made of a clean VM. To find something again, the
// script must have kept it.
type Evaluated struct{ *wasmvm.Saved }

// ErrLarge says that a VM has more pages of its own than were wanted.
var ErrLarge = wasmvm.ErrLarge

// ErrFiles says that the code used files, which Save does not keep.
var ErrFiles = errors.New("cpython: the code used files")

// Save keeps what the VM is now, in at most so many bytes of pages.
func (vm *VM) Save(most uint64) (*Evaluated, error) {
	if vm.busy {
		return nil, errors.New("cpython: a call is under way")
	}
	if vm.sys.Used() {
		return nil, ErrFiles
	}
	s, err := vm.inst.Save(most)
	if err != nil {
		return nil, err
	}
	return &Evaluated{s}, nil
}

// Load makes a clean VM, before Run, what the one that was saved was. memory is
// the limit of the linear memory, of which that is a part.
func (vm *VM) Load(s *Evaluated, memory uint64) error {
	if s.Memory() > memory {
		return &MemoryError{Want: s.Memory(), Limit: memory}
	}
	return vm.inst.Load(s.Saved)
}
