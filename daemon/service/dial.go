package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Kinds of Error.
const (
	// KindMissing: nothing answers on the socket.
	KindMissing = "missing"
	// KindUntrusted: somebody else than the policy says has opened the socket.
	KindUntrusted = "untrusted"
	// KindBusy: there was no room for the call in time.
	KindBusy = "busy"
	// KindTimeout: the service did not answer in time.
	KindTimeout = "timeout"
	// KindProtocol: what it answered is not an answer.
	KindProtocol = "protocol"
)

// An Error says why a service gave no answer. Its Message may be shown to code;
// Err may name what the code must not see, and is for the log.
type Error struct {
	Kind    string
	Message string
	Err     error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Dial connects to the Unix socket at path, which root, this process's user or
// uid must have opened. Errors are *Error, or that of ctx.
func Dial(ctx context.Context, path string, uid *uint32) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		e := &Error{Kind: KindMissing, Message: "its service is not running", Err: err}
		if errors.Is(err, unix.EACCES) {
			e.Message = "its service does not let the daemon connect"
		}
		return nil, e
	}
	cred, err := credentials(conn.(*net.UnixConn))
	if err == nil && cred.Uid != 0 && int64(cred.Uid) != int64(os.Geteuid()) && (uid == nil || cred.Uid != *uid) {
		err = fmt.Errorf("the socket %s was opened by uid %d; write user: NAME in the policy if that is the service's", path, cred.Uid)
	}
	if err != nil {
		conn.Close()
		return nil, &Error{Kind: KindUntrusted, Message: "its service runs as another user than the policy says", Err: err}
	}
	return conn, nil
}

func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, failed)
}
