package seccomp

import (
	"fmt"

	scmp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp/bpf"
)

// A Filter says what a process may ask of the kernel. Each name stands in one
// of Allow, AllowIf, Errno, Notify and Kill, except that a name in AllowIf may
// also stand in Errno or in Notify, which then gives the answer to arguments that
// no rule allows.
type Filter struct {
	// Allow lists system calls that pass with any arguments.
	Allow []string
	// AllowIf lists system calls that pass with some arguments only. Several
	// rules of one name are alternatives. What none of them covers is EPERM, or
	// the name's entry in Errno.
	AllowIf []Rule
	// DenyIf gives some arguments of a name that stands in AllowIf an answer of
	// their own. A DenyIf rule may overlap no AllowIf rule and no DenyIf rule
	// with another error number.
	DenyIf []Denial
	// Errno lists system calls that are known and refused, with the answer.
	Errno map[string]unix.Errno
	// Notify lists system calls that wait for whoever holds the filter's
	// listener (see LoadListener) to answer them; without a holder they are
	// ENOSYS.
	Notify []string
	// Kill lists system calls that end the process.
	Kill []string
}

// A Rule matches a system call when all its Args match.
type Rule struct {
	Name string
	Args []Arg
}

// A Denial is a Rule and the error number that it answers.
type Denial struct {
	Rule
	Errno unix.Errno
}

// An Arg matches when argument Index (0 to 5), masked with Mask, equals Value.
//
// The kernel cuts an int argument to 32 bits; a comparison with all 64 bits
// would then see a value that the kernel does not. Use Is and Masked for int
// arguments, and Is64 for pointers and lengths only.
type Arg struct {
	Index uint
	Mask  uint64
	Value uint64
}

// Is matches when the low 32 bits of an argument equal value.
func Is(index uint, value uint32) Arg {
	return Arg{Index: index, Mask: 0xffffffff, Value: uint64(value)}
}

// Masked matches when the low 32 bits of an argument, masked, equal value.
func Masked(index uint, mask, value uint32) Arg {
	return Arg{Index: index, Mask: uint64(mask), Value: uint64(value)}
}

// Is64 matches when all 64 bits of an argument, a pointer or a length, equal
// value.
func Is64(index uint, value uint64) Arg {
	return Arg{Index: index, Mask: ^uint64(0), Value: value}
}

func (a Arg) matches(args *[6]uint64) bool {
	return args[a.Index]&a.Mask == a.Value
}

// disjoint reports whether no value matches both.
func (a Arg) disjoint(b Arg) bool {
	return a.Index == b.Index && (a.Value^b.Value)&a.Mask&b.Mask != 0
}

func (r Rule) matches(args *[6]uint64) bool {
	for _, a := range r.Args {
		if !a.matches(args) {
			return false
		}
	}
	return true
}

// disjoint reports whether no arguments match both.
func (r Rule) disjoint(o Rule) bool {
	for _, a := range r.Args {
		for _, b := range o.Args {
			if a.disjoint(b) {
				return true
			}
		}
	}
	return false
}

// UnknownError says that libseccomp does not know a system call's name. An
// older library than the one the list was written for would otherwise leave the
// call out.
type UnknownError struct {
	Name    string
	Library string // libseccomp's version
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("seccomp: libseccomp %s does not know the system call %q", e.Library, e.Name)
}

// ListError says what is wrong with a Filter.
type ListError struct {
	Name    string
	Problem string
}

func (e *ListError) Error() string {
	return fmt.Sprintf("seccomp: %s: %s", e.Name, e.Problem)
}

// Marshal returns a program's bytes; see bpf.Marshal.
func Marshal(prog []unix.SockFilter) []byte { return bpf.Marshal(prog) }

// Unmarshal is the reverse of Marshal; see bpf.Unmarshal.
func Unmarshal(b []byte) ([]unix.SockFilter, error) { return bpf.Unmarshal(b) }

// Number is the number of a system call on this machine; ok is false for a name
// that libseccomp does not know or this architecture does not have.
func Number(name string) (nr uint32, ok bool) {
	n, err := scmp.GetSyscallFromName(name)
	return uint32(n), err == nil && n >= 0
}

// Load puts the program on all threads of this process; see bpf.Load.
func Load(prog []unix.SockFilter) error { return bpf.Load(prog) }
