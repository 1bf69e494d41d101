package ipc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"

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
	readBuffer = 64 << 10
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
	file *os.File
	max  int

	sendMu sync.Mutex

	buf   []byte // received and not yet handed out
	oob   []byte
	files []*os.File // received and not yet claimed by a frame
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
	if maxFrame <= 0 {
		maxFrame = DefaultMaxFrame
	}
	return &Conn{file: file, max: maxFrame, oob: make([]byte, unix.CmsgSpace(MaxFiles*4))}
}

// Close closes the socket and every descriptor that was received but not
// claimed. A blocked Recv or Send returns an error.
func (c *Conn) Close() error {
	return c.file.Close()
}

// Send writes one frame. The files stay the caller's.
func (c *Conn) Send(payload []byte, files ...*os.File) error {
	if len(payload) > c.max {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(payload), c.max)
	}
	if len(files) > MaxFiles {
		return fmt.Errorf("%w: %d descriptors, at most %d", ErrTooLarge, len(files), MaxFiles)
	}
	frame := make([]byte, headerSize+len(payload))
	binary.LittleEndian.PutUint32(frame, uint32(len(payload)))
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(files)))
	copy(frame[headerSize:], payload)
	fds := make([]int, len(files))
	for i, f := range files {
		// Not Fd: it would set the file blocking, for every holder of it.
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return fmt.Errorf("ipc: descriptor to send: %w", err)
		}
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	err := c.write(frame, oob)
	runtime.KeepAlive(files)
	return err
}

func (c *Conn) write(frame, oob []byte) error {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("ipc: send: %w", err)
	}
	for len(frame) > 0 {
		var n int
		var serr error
		err := raw.Write(func(fd uintptr) bool {
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
		if errors.Is(err, io.EOF) && len(c.buf) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, c.fail(err)
	}
	size := binary.LittleEndian.Uint32(c.buf)
	count := binary.LittleEndian.Uint32(c.buf[4:])
	if uint64(size) > uint64(c.max) {
		return nil, nil, c.fail(fmt.Errorf("%w: peer announced %d bytes, at most %d", ErrTooLarge, size, c.max))
	}
	// The kernel delivers descriptors with the first byte of their frame.
	if count > MaxFiles || int(count) > len(c.files) {
		return nil, nil, c.fail(fmt.Errorf("%w: peer announced %d descriptors and sent %d", ErrProtocol, count, len(c.files)))
	}
	if err := c.fill(headerSize + int(size)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, c.fail(err)
	}
	payload = make([]byte, size)
	copy(payload, c.buf[headerSize:])
	c.buf = c.buf[headerSize+int(size):]
	if count > 0 {
		files = append(files, c.files[:count]...)
		c.files = c.files[count:]
	}
	if len(c.buf) == 0 {
		c.buf = nil
	}
	return payload, files, nil
}

// fail closes unclaimed descriptors: after an error the stream is useless.
func (c *Conn) fail(err error) error {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
	return err
}

// fill reads until at least need bytes are buffered.
func (c *Conn) fill(need int) error {
	if len(c.buf) >= need {
		return nil
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("ipc: receive: %w", err)
	}
	for len(c.buf) < need {
		if cap(c.buf)-len(c.buf) < min(need-len(c.buf), readBuffer) {
			// Grow step by step with what really arrives: a peer that only
			// announces a large frame makes us allocate little.
			grown := make([]byte, len(c.buf), len(c.buf)+max(readBuffer, min(need-len(c.buf), len(c.buf)+readBuffer)))
			copy(grown, c.buf)
			c.buf = grown
		}
		free := c.buf[len(c.buf):cap(c.buf)]
		var n, oobn int
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, rerr = unix.Recvmsg(int(fd), free, c.oob, unix.MSG_CMSG_CLOEXEC)
			return rerr != unix.EAGAIN
		})
		if err == nil {
			err = rerr
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("ipc: receive: %w", err)
		}
		if err := c.takeFiles(c.oob[:oobn]); err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		c.buf = c.buf[:len(c.buf)+n]
	}
	return nil
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
