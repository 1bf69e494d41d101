package bpf

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Load makes prog the filter of all threads of this process, for ever. The
// caller has set no_new_privs (on all threads); the kernel refuses an
// unprivileged process without it, with EACCES. If any thread cannot take the
// filter, none gets it.
func Load(prog []unix.SockFilter) error {
	_, err := load(prog, 0)
	return err
}

// LoadListener is Load, and returns the descriptor on which calls that prog
// answers with SECCOMP_RET_USER_NOTIF wait. A process that has such a filter
// above it, from a container's runtime for instance, cannot have a second
// listener: EBUSY.
func LoadListener(prog []unix.SockFilter) (int, error) {
	return load(prog, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
}

func load(prog []unix.SockFilter, extra uintptr) (int, error) {
	if len(prog) == 0 || len(prog) > MaxLen {
		return -1, fmt.Errorf("%w: %d instructions", ErrMalformed, len(prog))
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	// TSYNC_ESRCH turns the thread id that TSYNC alone returns on a conflict
	// into an error, so that success has one form.
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags|extra, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return -1, fmt.Errorf("bpf: load seccomp program: %w", errno)
	}
	return int(fd), nil
}
