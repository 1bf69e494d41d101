package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Notice is a system call that waits for the holder of the filter's listener
// (struct seccomp_notif).
type Notice struct {
	ID    uint64
	Pid   uint32 // of the thread, as the holder sees it
	Flags uint32
	Nr    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

// answer is struct seccomp_notif_resp.
type answer struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

const (
	notifRecv    = 0xc0502100 // SECCOMP_IOCTL_NOTIF_RECV
	notifSend    = 0xc0182101
	notifIDValid = 0x40082102
	notifGoOn    = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
)

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// ReceiveNotice takes the next one; it waits until there is one. ENOENT says
// that the caller of the last one did not wait any longer.
func ReceiveNotice(fd int) (Notice, error) {
	var n Notice
	err := ioctl(fd, notifRecv, unsafe.Pointer(&n))
	return n, err
}

// NoticePending tells whether ReceiveNotice would return at once; over, that no
// process with the filter is left.
func NoticePending(fd int) (pending, over bool, err error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 0); err != nil && err != unix.EINTR {
		return false, false, err
	}
	return fds[0].Revents&unix.POLLIN != 0, fds[0].Revents&unix.POLLHUP != 0, nil
}

// NoticeValid tells whether the call still waits, and so Pid is still the one
// that made it.
func NoticeValid(fd int, id uint64) bool {
	return ioctl(fd, notifIDValid, unsafe.Pointer(&id)) == nil
}

// AnswerNotice makes the call return 0, or errno.
func AnswerNotice(fd int, id uint64, errno unix.Errno) error {
	a := answer{id: id, errno: -int32(errno)}
	return ioctl(fd, notifSend, unsafe.Pointer(&a))
}

// ContinueNotice lets the kernel do the call as it stands, with whatever its
// arguments point to by then.
func ContinueNotice(fd int, id uint64) error {
	a := answer{id: id, flags: notifGoOn}
	return ioctl(fd, notifSend, unsafe.Pointer(&a))
}
