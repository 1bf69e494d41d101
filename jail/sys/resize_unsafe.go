package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const ext4Resize = 0x40086610 // EXT4_IOC_RESIZE_FS

// ResizeExt4 makes the mounted ext4 file system that fd is in as large as blocks
// of its own size. It only grows.
func ResizeExt4(fd int, blocks uint64) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ext4Resize, uintptr(unsafe.Pointer(&blocks)))
	if errno != 0 {
		return errno
	}
	return nil
}
