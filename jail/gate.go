package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A gate is a socket pair at which a new process stops before it is let go: it
// writes one byte, waits for one, and finds the socket closed if the daemon has
// died.

// gatePair returns our end, on which SO_PASSCRED makes the kernel say who
// writes, and the child's, which blocks.
func gatePair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("jail: gate: %w", err)
	}
	if err = unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err == nil {
		err = unix.SetNonblock(fds[0], true)
	}
	if err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("jail: gate: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "gate"), os.NewFile(uintptr(fds[1]), "child's gate"), nil
}

// await waits for the byte of a process that stands at the gate.
func await(ctx context.Context, gate *os.File) error {
	_, err := awaitPeer(ctx, gate)
	return err
}

// awaitPeer also returns the pid of the process that wrote, which the kernel
// translates to our own namespace.
func awaitPeer(ctx context.Context, gate *os.File) (int, error) {
	stop := context.AfterFunc(ctx, func() { gate.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := gate.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("jail: gate: %w", err)
	}
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	var n, oobn int
	var rerr error
	err = raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, rerr = unix.Recvmsg(int(fd), b[:], oob, unix.MSG_CMSG_CLOEXEC)
		return rerr != unix.EAGAIN
	})
	if err = errors.Join(err, rerr); err != nil {
		return 0, fmt.Errorf("jail: gate: %w", errors.Join(ctx.Err(), err))
	}
	if n == 0 {
		return 0, fmt.Errorf("jail: gate: %w", io.ErrUnexpectedEOF)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) == 0 {
		return 0, fmt.Errorf("jail: gate: no credentials: %w", err)
	}
	cred, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return 0, fmt.Errorf("jail: gate: %w", err)
	}
	return int(cred.Pid), nil
}
