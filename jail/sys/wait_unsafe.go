package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfoChild is the kernel's siginfo_t for SIGCHLD on 64-bit machines.
type siginfoChild struct {
	signo, errno, code, _ int32
	pid, uid, status      int32
	_                     [100]byte
}

// NextDead waits until a child has ended and returns its pid without reaping
// it: the number cannot be given to another process before Wait4 is called.
func NextDead() (int, error) {
	var info siginfoChild
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOWAIT|unix.WALL, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(info.pid), nil
	}
}
