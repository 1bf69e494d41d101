package ipc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A thread waits for a socket itself. Through the runtime's poller two threads
// wake and a goroutine is handed from one to the other, which takes several
// times as long; but nothing else can run on this one's processor meanwhile,
// until the runtime notices. So it is for a process in which nothing runs while
// it waits; where that is not so it uses the poller, until nothing runs again.
type thread struct {
	fd    int
	epoll int
	// polled is a duplicate of the socket in the runtime's poller, nil while the
	// thread waits itself: were it always there, a message would wake the
	// poller's thread as well.
	polled atomic.Pointer[os.File]
}

// FromFDWaiting is FromFD for a process in which nothing runs while Recv waits,
// unless it calls UsePoller.
func FromFDWaiting(fd int, maxFrame int) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("ipc: descriptor %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("ipc: wait for descriptor %d: %w", fd, err)
	}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("ipc: wait for descriptor %d: %w", fd, err)
	}
	t := &thread{fd: fd, epoll: epoll}
	return newConn(t, func() error { return errors.Join(unix.Close(fd), unix.Close(epoll)) }, maxFrame), nil
}

// UsePoller has Recv leave its processor to others while it waits, until
// LeavePoller. Both are for a Conn of FromFDWaiting, and for one goroutine at a
// time.
func (c *Conn) UsePoller() error {
	t := c.raw.(*thread)
	if t.polled.Load() != nil {
		return nil
	}
	f, err := t.duplicate()
	if err != nil {
		return err
	}
	t.polled.Store(f)
	return nil
}

// LeavePoller has Recv wait with its thread, also one under way.
func (c *Conn) LeavePoller() {
	if f := c.raw.(*thread).polled.Swap(nil); f != nil {
		f.Close() // wakes who waits
	}
}

// Pending tells whether Recv would not wait. No other goroutine may be in it.
func (c *Conn) Pending() bool { return c.end > c.start || c.Readable() }

func (t *thread) duplicate() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(t.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("ipc: duplicate the socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "ipc"), nil
}

// Control implements syscall.RawConn.
func (t *thread) Control(f func(fd uintptr)) error {
	f(uintptr(t.fd))
	return nil
}

// Read implements syscall.RawConn.
func (t *thread) Read(f func(fd uintptr) bool) error {
	for !f(uintptr(t.fd)) {
		p := t.polled.Load()
		if p == nil {
			if err := t.wait(); err != nil {
				return err
			}
			continue
		}
		raw, err := p.SyscallConn()
		if err == nil {
			err = raw.Read(f)
		}
		if err == nil || t.polled.Load() == p { // else LeavePoller has closed it
			return err
		}
	}
	return nil
}

// Write implements syscall.RawConn. It waits with the poller: the peer may take
// its time.
func (t *thread) Write(f func(fd uintptr) bool) error {
	if f(uintptr(t.fd)) {
		return nil
	}
	file, err := t.duplicate()
	if err != nil {
		return err
	}
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Write(f)
}

// soon is how long, in milliseconds, a thread waits without the runtime knowing.
// To it the thread computes, and it does nothing; of one that is known to wait it
// takes the processor, and has another thread look for work. That is about as
// long as the calls of one client are apart.
const soon = 2

// wait returns when there may be something to read.
func (t *thread) wait() error {
	// What can run, and this would hold up, runs first.
	runtime.Gosched()
	var event unix.EpollEvent
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(t.epoll), uintptr(unsafe.Pointer(&event)), 1, soon, 0, 0)
	if errno == 0 && n > 0 {
		return nil
	}
	for {
		events := [1]unix.EpollEvent{}
		_, err := unix.EpollWait(t.epoll, events[:], -1)
		if err != unix.EINTR {
			return err
		}
	}
}
