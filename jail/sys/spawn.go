package sys

import (
	"errors"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Why not os/exec: with a new user namespace it copies the daemon's whole page
// table, and it cannot do what a tenant's process needs between clone and
// execve (its own cgroup, capabilities, seccomp). Here the child shares memory
// with its parent and does nothing but a prepared list of system calls.

// op is one system call of a child. Its layout is known to spawn_amd64.s.
type op struct {
	nr      uintptr
	args    [6]uintptr
	min     int64 // smallest result that is a success
	mayFail int64 // 1: go on after a failure
}

// program's layout is known to spawn_amd64.s.
type program struct {
	ops    *op
	count  int64
	failed int64 // index+1 of the op that failed; written by the child
	errno  int64 // written by the child before failed
}

// cloneArgs is the kernel's struct clone_args.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
	setTID, setTIDSize, cgroup                                           uint64
}

//go:noescape
func rawSpawn(args unsafe.Pointer, size uintptr, prog unsafe.Pointer, all *uint64, old *uint64) (ret int64)

const (
	cloneClearHands  = 0x100000000 // CLONE_CLEAR_SIGHAND
	cloneIntoCgroup  = 0x200000000 // CLONE_INTO_CGROUP
	cloneFlagsAlways = unix.CLONE_VM | unix.CLONE_PIDFD | cloneClearHands
)

// A Program is what a child does between clone3 and execve.
type Program struct {
	ops   []op
	steps []string
	keep  []any // what the ops point to
}

// A StepError says which step of a Program failed.
type StepError struct {
	Step  string
	Errno unix.Errno
}

func (e *StepError) Error() string { return e.Step + ": " + e.Errno.Error() }

// Unwrap returns the errno.
func (e *StepError) Unwrap() error { return e.Errno }

// Call appends a system call. step names it in a StepError.
func (p *Program) Call(step string, nr uintptr, args ...uintptr) {
	p.add(step, 0, 0, nr, args)
}

// CallMin appends a system call whose result must be at least min.
func (p *Program) CallMin(step string, min int, nr uintptr, args ...uintptr) {
	p.add(step, int64(min), 0, nr, args)
}

// Try appends a system call that may fail.
func (p *Program) Try(step string, nr uintptr, args ...uintptr) {
	p.add(step, 0, 1, nr, args)
}

func (p *Program) add(step string, min, mayFail int64, nr uintptr, args []uintptr) {
	o := op{nr: nr, min: min, mayFail: mayFail}
	copy(o.args[:], args)
	p.ops = append(p.ops, o)
	p.steps = append(p.steps, step)
}

// Bytes returns the address of b, which lives as long as p.
func (p *Program) Bytes(b []byte) uintptr {
	if len(b) == 0 {
		b = make([]byte, 1)
	}
	p.keep = append(p.keep, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// String returns the address of s as a C string. A NUL ends it.
func (p *Program) String(s string) uintptr {
	return p.Bytes(append([]byte(s), 0))
}

// Strings returns the address of a C string array.
func (p *Program) Strings(list []string) uintptr {
	array := make([]uintptr, len(list)+1)
	for i, s := range list {
		array[i] = p.String(s)
	}
	p.keep = append(p.keep, array)
	return uintptr(unsafe.Pointer(&array[0]))
}

// pointer returns the address of a value that lives as long as p.
func pointer[T any](p *Program, v *T) uintptr {
	p.keep = append(p.keep, v)
	return uintptr(unsafe.Pointer(v))
}

// A Child is a started Program.
type Child struct {
	Pid   int
	PidFD int // close-on-exec; the caller's to close

	prog *program
	p    *Program
}

// Start runs p in a new process made with the namespace flags, in the cgroup
// that cgroupFD is open on (-1: the caller's), with SIGCHLD at its end. The
// caller must be locked to its thread. It returns at once: the child has
// executed a program or ended when the write end of a close-on-exec pipe that
// only the child has is closed. Only then may Finish be called.
func (p *Program) Start(namespaces uint64, cgroupFD int) (*Child, error) {
	if len(p.ops) == 0 {
		return nil, errors.New("sys: empty program")
	}
	c := &Child{prog: &program{ops: &p.ops[0], count: int64(len(p.ops))}, p: p}
	var pidfd int32
	args := &cloneArgs{
		flags:      cloneFlagsAlways | namespaces,
		pidfd:      uint64(uintptr(unsafe.Pointer(&pidfd))),
		exitSignal: uint64(unix.SIGCHLD),
	}
	if cgroupFD >= 0 {
		args.flags |= cloneIntoCgroup
		args.cgroup = uint64(cgroupFD)
	}
	all, old := ^uint64(0), uint64(0)
	ret := rawSpawn(unsafe.Pointer(args), unsafe.Sizeof(*args), unsafe.Pointer(c.prog), &all, &old)
	runtime.KeepAlive(args)
	runtime.KeepAlive(&pidfd)
	if ret < 0 {
		return nil, &StepError{Step: "clone", Errno: unix.Errno(-ret)}
	}
	c.Pid, c.PidFD = int(ret), int(pidfd)
	return c, nil
}

// Finish returns the *StepError of a child that ended before it executed a
// program, and frees what the child needed until then.
func (c *Child) Finish() error {
	failed := atomic.LoadInt64(&c.prog.failed)
	errno := atomic.LoadInt64(&c.prog.errno)
	steps := c.p.steps
	c.p, c.prog = &Program{steps: steps}, &program{failed: failed, errno: errno}
	if failed == 0 {
		return nil
	}
	if errno <= 0 {
		// A read that met the end of its pipe: the parent gave up.
		errno = int64(unix.EPIPE)
	}
	return &StepError{Step: steps[failed-1], Errno: unix.Errno(errno)}
}
