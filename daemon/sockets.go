package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// A Socket is one listener of the API.
type Socket struct {
	net.Listener
	// Admin callers may use everything.
	Admin bool
	// Path is where it is, for people.
	Path string

	mu   sync.Mutex
	lock *os.File // guarded by mu
}

// umaskMu: the umask belongs to the whole process.
var umaskMu sync.Mutex

// ListenUnix makes the socket path with mode 0660. It refuses a path that a
// living daemon listens on: a lock file beside it is held as long as the socket
// is open, so that a socket without a holder is known to be left over.
func ListenUnix(path string, admin bool) (*Socket, error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("socket %s: another sandboxd listens on it", path)
		}
		return nil, fmt.Errorf("socket %s: lock: %w", path, err)
	}
	l, err := bind(path)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &Socket{Listener: l, Admin: admin, Path: path, lock: lock}, nil
}

// bind removes what is left of an earlier socket and listens. The mode is right
// from the first moment: it comes from the umask.
func bind(path string) (net.Listener, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("socket %s: %w", path, err)
	case st.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("socket %s: there is something else at this path", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket %s: %w", path, err)
		}
	}
	umaskMu.Lock()
	old := unix.Umask(0o117)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	umaskMu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", filepath.Base(path), err)
	}
	l.SetUnlinkOnClose(true)
	return l, nil
}

// Close ends the listener; a socket that ListenUnix made is removed.
func (s *Socket) Close() error {
	err := s.Listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // the server has closed it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil {
		removed := os.Remove(s.lock.Name())
		if errors.Is(removed, os.ErrNotExist) {
			removed = nil
		}
		err = errors.Join(err, removed, s.lock.Close())
		s.lock = nil
	}
	return err
}

const (
	// maxConnections is how many connections one socket serves at once; more
	// wait in the kernel's queue.
	maxConnections = 1024
	// maxOfUser is how many of them one user may have: never all.
	maxOfUser = 768
	// maxOfStranger is that for a user whom policy does not name.
	maxOfStranger = 16
)

// limited accepts at most so many connections at once, of all users and of each.
type limited struct {
	net.Listener
	admin bool
	share func(policy.Caller) int // how many the caller's user may have
	log   *slog.Logger
	slots chan struct{}
	done  chan struct{}
	once  sync.Once

	mu    sync.Mutex
	users map[uint32]int // guarded by mu: connections
}

func limit(l net.Listener, n int, admin bool, share func(policy.Caller) int, log *slog.Logger) *limited {
	return &limited{Listener: l, admin: admin, share: share, log: log, users: map[uint32]int{}, slots: make(chan struct{}, n), done: make(chan struct{})}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.done:
			return nil, net.ErrClosed
		}
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.slots
			return nil, err
		}
		p, err := identify(c, l.admin)
		if err == nil && l.enter(p.caller) {
			return &slotConn{Conn: c, unix: c.(*net.UnixConn), peer: p, free: sync.OnceFunc(func() { l.leave(p.caller.UID); <-l.slots })}, nil
		}
		if err != nil {
			l.log.Warn("a connection without an identity", "error", err)
		} else {
			turnAway(c)
		}
		c.Close()
		<-l.slots
	}
}

func (l *limited) enter(c policy.Caller) bool {
	most := l.share(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users[c.UID] >= most {
		return false
	}
	l.users[c.UID]++
	return true
}

func (l *limited) leave(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users[uid]--; l.users[uid] == 0 {
		delete(l.users, uid)
	}
}

// turnAway answers a connection that is one too many, if that takes no time.
func turnAway(c net.Conn) {
	body, err := json.Marshal(api.ErrorBody{Error: &api.Error{Code: api.CodeBusy, Message: "this user has as many connections as one user may have", Retryable: true}})
	if err != nil || c.SetWriteDeadline(time.Now().Add(10*time.Millisecond)) != nil {
		return
	}
	fmt.Fprintf(c, "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

type slotConn struct {
	net.Conn
	unix *net.UnixConn // the same
	peer *peer
	free func()
}

func (c *slotConn) Read(b []byte) (int, error) { return c.peer.handed.read(c.unix, b) }

func (c *slotConn) Close() error {
	err := c.Conn.Close()
	c.peer.handed.drop(true)
	c.free()
	return err
}

// connContext puts the peer into the context of a connection's requests.
func (d *Daemon) connContext(ctx context.Context, c net.Conn) context.Context {
	s, ok := c.(*slotConn)
	if !ok {
		return ctx // without a peer every request is refused; see server.go
	}
	d.peers.Store(c, s.peer)
	return context.WithValue(ctx, peerKey{}, s.peer)
}

// share is how many connections a caller's user may have.
func (d *Daemon) share(c policy.Caller) int {
	if d.policy.MayConnect(c) {
		return maxOfUser
	}
	return maxOfStranger
}

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)
