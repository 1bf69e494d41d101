package sys

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// allThreads makes a system call on every thread of the process; a thread on
// which it answers differently ends the process (that is the Go runtime's
// rule). With cgo it returns ENOTSUP.
func allThreads(nr, a, b, c uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(nr, a, b, c); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// RootAllThreads makes every thread of this process the root of its user
// namespace, user and group, without supplementary groups. It needs a binary
// without cgo.
func RootAllThreads() error {
	for _, nr := range []uintptr{unix.SYS_SETGROUPS, unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if err := allThreads(nr, 0, 0, 0); err != nil {
			return err
		}
	}
	return nil
}
