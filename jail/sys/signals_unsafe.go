package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigAllThreads is how the Go runtime has every thread make a system call.
const sigAllThreads = 33

// DefaultSignals takes away the Go runtime's signal handlers, but for those
// that it works with itself. From PID 1 of a namespace the kernel keeps what is
// sent from within and has no handler, and so nobody inside can end it; a fault
// of its own still does, without a word.
func DefaultSignals() error {
	var def [32]byte // struct sigaction: SIG_DFL, no flags
	for s := unix.Signal(1); s <= 64; s++ {
		switch s {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGURG, sigAllThreads:
			continue
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&def)), 0, 8, 0, 0)
		if errno != 0 {
			return errno
		}
	}
	return nil
}
