package ipc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of one frame. A peer that exceeds them is broken or hostile.
const (
	// MaxFiles is the largest number of descriptors in one frame (the kernel's
	// own limit, SCM_MAX_FD, is 253).
	MaxFiles = 16
	// DefaultMaxFrame is the payload limit of a Conn unless NewConn is told
	// otherwise.
	DefaultMaxFrame = 64 << 20

	headerSize = 8 // uint32 payload length, uint32 number of descriptors
	readBuffer = 16 << 10
)

var (
	// ErrTooLarge says that a frame exceeds the connection's payload limit.
	ErrTooLarge = errors.New("ipc: frame too large")
	// ErrProtocol says that the peer broke the framing.
	ErrProtocol = errors.New("ipc: protocol violation")
)

// Conn is one end of a framed connection. Send may be called from several
// goroutines; Recv from one at a time.
type Conn struct {
	raw   syscall.RawConn
	close func() error
	max   int

	send struct {
		mu     sync.Mutex
		buffer []byte // guarded by mu: a small frame on its way
	}

	// A frame that fits is read into buffer, which is kept: connections are
	// few and frames are many.
	buffer     []byte
	start, end int // what was received and not yet handed out
	oob        []byte
	files      []*os.File // received and not yet claimed by a frame
}

// Pair makes a connected pair of close-on-exec, non-blocking stream sockets.
func Pair() (*os.File, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("ipc: socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "ipc"), os.NewFile(uintptr(fds[1]), "ipc-peer"), nil
}

// FromFD wraps an inherited socket. It sets the descriptor non-blocking and
// close-on-exec.
func FromFD(fd int, maxFrame int) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("ipc: descriptor %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	return NewConn(os.NewFile(uintptr(fd), "ipc"), maxFrame), nil
}

// NewConn takes ownership of a non-blocking Unix stream socket. maxFrame is the
// largest payload in bytes that is accepted or sent; 0 means DefaultMaxFrame.
func NewConn(file *os.File, maxFrame int) *Conn {
	raw, err := file.SyscallConn()
	if err != nil { // there is no file: the first use says so
		raw = broken{err}
	}
	return newConn(raw, file.Close, maxFrame)
}

func newConn(raw syscall.RawConn, close func() error, maxFrame int) *Conn {
	if maxFrame <= 0 {
		maxFrame = DefaultMaxFrame
	}
	return &Conn{raw: raw, close: close, max: maxFrame, oob: make([]byte, unix.CmsgSpace(MaxFiles*4))}
}

// broken is a socket that cannot be used.
type broken struct{ err error }

func (b broken) Control(func(uintptr)) error    { return b.err }
func (b broken) Read(func(uintptr) bool) error  { return b.err }
func (b broken) Write(func(uintptr) bool) error { return b.err }

// Close closes the socket and every descriptor that was received but not
// claimed. A blocked Recv or Send returns an error.
func (c *Conn) Close() error {
	return c.close()
}

// Send writes one frame. The files stay the caller's.
func (c *Conn) Send(payload []byte, files ...*os.File) error {
	if len(payload) > c.max {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(payload), c.max)
	}
	if len(files) > MaxFiles {
		return fmt.Errorf("%w: %d descriptors, at most %d", ErrTooLarge, len(files), MaxFiles)
	}
	oob, err := rights(files)
	if err != nil {
		return err
	}
	c.send.mu.Lock()
	defer c.send.mu.Unlock()
	frame := binary.LittleEndian.AppendUint32(c.send.buffer[:0], uint32(len(payload)))
	frame = binary.LittleEndian.AppendUint32(frame, uint32(len(files)))
	frame = append(frame, payload...) // header and payload in one system call
	if cap(frame) <= readBuffer {
		c.send.buffer = frame
	}
	err = c.write(frame, oob)
	runtime.KeepAlive(files)
	return err
}

// rights is the control message that passes files on.
func rights(files []*os.File) ([]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		// Not Fd: it would set the file blocking, for every holder of it.
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return nil, fmt.Errorf("ipc: descriptor to send: %w", err)
		}
	}
	return unix.UnixRights(fds...), nil
}

func (c *Conn) write(frame, oob []byte) error {
	for len(frame) > 0 {
		var n int
		var serr error
		err := c.raw.Write(func(fd uintptr) bool {
			n, serr = unix.SendmsgN(int(fd), frame, oob, nil, unix.MSG_NOSIGNAL)
			return serr != unix.EAGAIN
		})
		if err == nil {
			err = serr
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("ipc: send: %w", err)
		}
		frame, oob = frame[n:], nil
	}
	return nil
}

// Recv reads one frame. The caller owns payload and must close the files. It
// returns io.EOF when the peer closed between frames.
func (c *Conn) Recv() (payload []byte, files []*os.File, err error) {
	if err := c.fill(headerSize); err != nil {
		if errors.Is(err, io.EOF) && c.end > c.start {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, c.fail(err)
	}
	size := binary.LittleEndian.Uint32(c.buffer[c.start:])
	count := binary.LittleEndian.Uint32(c.buffer[c.start+4:])
	if uint64(size) > uint64(c.max) {
		return nil, nil, c.fail(fmt.Errorf("%w: peer announced %d bytes, at most %d", ErrTooLarge, size, c.max))
	}
	// The kernel delivers descriptors with the first byte of their frame.
	if count > MaxFiles || int(count) > len(c.files) {
		return nil, nil, c.fail(fmt.Errorf("%w: peer announced %d descriptors and sent %d", ErrProtocol, count, len(c.files)))
	}
	c.start += headerSize
	if payload, err = c.body(int(size)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, c.fail(err)
	}
	if count > 0 {
		files = append(files, c.files[:count]...)
		c.files = c.files[count:]
	}
	return payload, files, nil
}

// body takes the next size bytes.
func (c *Conn) body(size int) ([]byte, error) {
	if size <= readBuffer {
		if err := c.fill(size); err != nil {
			return nil, err
		}
		payload := make([]byte, size)
		copy(payload, c.buffer[c.start:])
		c.start += size
		return payload, nil
	}
	// Grow step by step with what really arrives: a peer that only announces a
	// large frame makes us allocate little.
	payload := append(make([]byte, 0, readBuffer), c.buffer[c.start:c.end]...)
	c.start, c.end = 0, 0
	for len(payload) < size {
		if len(payload) == cap(payload) {
			grown := make([]byte, len(payload), min(size, 2*len(payload)))
			copy(grown, payload)
			payload = grown
		}
		// Never beyond this frame, where the next one's descriptors may be.
		n, err := c.read(payload[len(payload):min(cap(payload), size)])
		if err != nil {
			return nil, err
		}
		payload = payload[:len(payload)+n]
	}
	return payload, nil
}

// Readable tells whether there is something that Recv would not wait for, while
// another goroutine may be in Recv.
func (c *Conn) Readable() bool {
	var perr error
	var b [1]byte
	err := c.raw.Control(func(fd uintptr) {
		// A system call that every process with a Conn may use.
		_, _, _, _, perr = unix.Recvmsg(int(fd), b[:], nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err == nil && perr == nil
}

// contended is a pause between two looks that shows that another process had the
// processor.
const contended = 20 * time.Microsecond

// Await looks for something to read until it is there, d has passed or another
// process has had the processor; only the first is true. A goroutine that waits
// in Recv sleeps, and so does its processor; to wake both takes longer than many
// a peer needs for its answer. It is for the goroutine that calls Recv.
func (c *Conn) Await(d time.Duration) bool {
	if c.end > c.start {
		return true
	}
	for now, end := time.Now(), time.Now().Add(d); ; {
		if c.Readable() {
			return true
		}
		last := now
		// Who waits for this processor has it first.
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		if now = time.Now(); now.After(end) || now.Sub(last) > contended {
			return false
		}
	}
}

// fail closes unclaimed descriptors: after an error the stream is useless.
func (c *Conn) fail(err error) error {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
	return err
}

// fill reads until at least need bytes, at most readBuffer, are buffered.
func (c *Conn) fill(need int) error {
	for c.end-c.start < need {
		if c.buffer == nil {
			c.buffer = make([]byte, readBuffer)
		}
		if c.start > 0 {
			c.end = copy(c.buffer, c.buffer[c.start:c.end])
			c.start = 0
		}
		n, err := c.read(c.buffer[c.end:])
		if err != nil {
			return err
		}
		c.end += n
	}
	return nil
}

// read takes what there is, at least one byte.
func (c *Conn) read(into []byte) (int, error) {
	for {
		var n, oobn int
		var rerr error
		err := c.raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, rerr = unix.Recvmsg(int(fd), into, c.oob, unix.MSG_CMSG_CLOEXEC)
			return rerr != unix.EAGAIN
		})
		if err == nil {
			err = rerr
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("ipc: receive: %w", err)
		}
		if err := c.takeFiles(c.oob[:oobn]); err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
}

func (c *Conn) takeFiles(oob []byte) error {
	if len(oob) == 0 {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: control message: %w", ErrProtocol, err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			c.files = append(c.files, os.NewFile(uintptr(fd), "ipc-received"))
		}
	}
	if len(c.files) > 4*MaxFiles {
		return fmt.Errorf("%w: %d descriptors that no frame announced", ErrProtocol, len(c.files))
	}
	return nil
}
