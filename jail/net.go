package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A call of listen is known of just before the kernel does it: WaitPort looks
// again for so long after it, first soon and then ever more seldom.
const (
	listenPause    = 200 * time.Microsecond
	maxListenPause = 250 * time.Millisecond
	listenWindow   = 10 * time.Second
)

// Dial connects to a server inside the jail, on 127.0.0.1 or ::1. The socket is
// born in the jail's network namespace, so the server sees a neighbour; nothing
// of the jail's network is reachable from outside otherwise. The file is
// non-blocking and the caller's to close.
func (j *Jail) Dial(ctx context.Context, port uint16) (*os.File, error) {
	if port == 0 {
		return nil, &SpecError{Field: "port", Message: "is 0"}
	}
	release, err := j.awake(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	f, err := j.dial(ctx, unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
	if errors.Is(err, unix.ECONNREFUSED) {
		six, err6 := j.dial(ctx, unix.AF_INET6, &unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}})
		if err6 == nil {
			return six, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("jail: port %d: %w", port, err)
	}
	return f, nil
}

func (j *Jail) dial(ctx context.Context, family int, to unix.Sockaddr) (*os.File, error) {
	fd, err := j.socket(family)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "jail port")
	if err := connect(ctx, f, to); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// socket makes a TCP socket in the jail's network namespace. Only this thread
// goes there, by the pidfd of sandbox-init, for the length of one system call.
func (j *Jail) socket(family int) (int, error) {
	type result struct {
		fd  int
		err error
	}
	out := make(chan result, 1)
	onThread(func() bool {
		fd, home, err := j.socketHere(family)
		out <- result{fd, err}
		return home
	})
	r := <-out
	return r.fd, r.err
}

func (j *Jail) socketHere(family int) (fd int, home bool, err error) {
	raw, err := j.init.pidfd.SyscallConn()
	if err != nil {
		return -1, true, ErrGone
	}
	if cerr := raw.Control(func(pidfd uintptr) { err = unix.Setns(int(pidfd), unix.CLONE_NEWNET) }); cerr != nil || err != nil {
		return -1, true, errors.Join(ErrGone, err)
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if back := unix.Setns(int(j.m.homeNet.Fd()), unix.CLONE_NEWNET); back != nil {
		j.m.log.Error("thread could not leave a jail's network namespace", "tenant", j.tenant, "error", back)
		return fd, false, err
	}
	return fd, true, err
}

// connect waits for the connection through the runtime's poller.
func connect(ctx context.Context, f *os.File, to unix.Sockaddr) error {
	stop := context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	started := false
	err = raw.Write(func(fd uintptr) bool {
		if !started {
			started = true
			result = unix.Connect(int(fd), to)
			return !errors.Is(result, unix.EINPROGRESS)
		}
		soerr, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || soerr != 0 {
			result = errors.Join(err, unix.Errno(soerr))
			return true
		}
		// A wake-up from before the connection is not an answer.
		_, result = unix.Getpeername(int(fd))
		return !errors.Is(result, unix.ENOTCONN)
	})
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	return result
}

// WaitPort returns when something in the jail listens on the port at an address
// that Dial reaches. It looks once, and then only when a process of the jail
// calls listen (see notices.go).
func (j *Jail) WaitPort(ctx context.Context, port uint16) error {
	pause := listenPause
	// Who rings without end makes nobody look without end.
	looks := newBucket(100, 20)
	for looks.take(j.ending) {
		ring, last := j.listens.next()
		ok, err := j.isListening(port)
		if ok || err != nil {
			return err
		}
		var again <-chan time.Time
		if time.Since(last) < listenWindow {
			again = time.After(pause)
			pause = min(2*pause, maxListenPause)
		}
		select {
		case <-ring:
			pause = listenPause
		case <-again:
		case <-j.ending:
			return ErrGone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ErrGone
}

// Local addresses as /proc/net/tcp writes them, on a little-endian machine.
var reachable = map[string]bool{
	"00000000": true, "0100007F": true,
	"00000000000000000000000000000000": true, "00000000000000000000000001000000": true,
	"0000000000000000FFFF00000100007F": true,
}

// isListening looks at the jail's sockets without touching them: a trial connection
// would be seen by the server.
func (j *Jail) isListening(port uint16) (bool, error) {
	want := fmt.Sprintf("%04X", port)
	for _, file := range []string{"tcp", "tcp6"} {
		b, err := j.m.procFile(fmt.Sprintf("%d/net/%s", j.pid, file))
		if errors.Is(err, unix.ENOENT) && file == "tcp6" {
			continue // no IPv6 here
		}
		if err != nil {
			return false, errors.Join(ErrGone, err)
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			const listen = "0A"
			if len(f) < 4 || f[3] != listen {
				continue
			}
			if addr, p, ok := strings.Cut(f[1], ":"); ok && p == want && reachable[addr] {
				return true, nil
			}
		}
	}
	return false, nil
}
