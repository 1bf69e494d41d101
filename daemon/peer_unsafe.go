package daemon

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// getsockoptBytes reads a socket option of variable length; x/sys has no call
// for SO_PEERGROUPS.
func getsockoptBytes(fd, option int, buf []byte) (int, error) {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(size), nil
}

func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
