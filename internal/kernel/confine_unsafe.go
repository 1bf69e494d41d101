package kernel

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// actionAvailable asks the kernel whether it knows a seccomp action.
func actionAvailable(action uint32) error {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	if errno != 0 {
		return fmt.Errorf("seccomp action %#x: %w", action, errno)
	}
	return nil
}
