package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"sandboxd/netproxy/internal/control"
)

// A link is one jail's listeners.
type link struct {
	s  *Server
	t  *tenant
	ca *authority

	listeners []net.Listener
	dns       []*dns.Server
	udp       net.PacketConn

	ended atomic.Bool

	mu       sync.Mutex
	closed   bool
	conns    map[net.Conn]struct{}
	services map[string]*service
	wait     sync.WaitGroup
}

// newLink serves the sockets of a jail: proxy, http, https, DNS over UDP, DNS
// over TCP. The last file holds the key of the link's authority, if an earlier
// process has made one. The files are closed.
func newLink(s *Server, t *tenant, files []*os.File) (*link, error) {
	defer control.CloseAll(files)
	if len(files) != 6 {
		return nil, fmt.Errorf("a link has 5 sockets and a key, not %d files", len(files))
	}
	l := &link{s: s, t: t, conns: map[net.Conn]struct{}{}}
	var err error
	if l.ca, err = newAuthority(t.name, files[5]); err != nil {
		return nil, err
	}
	for _, i := range []int{0, 1, 2, 4} {
		n, err := net.FileListener(files[i])
		if err != nil {
			l.close()
			return nil, err
		}
		l.listeners = append(l.listeners, n)
	}
	if l.udp, err = net.FilePacketConn(files[3]); err != nil {
		l.close()
		return nil, err
	}
	l.accept(l.listeners[0], func(c *session) { c.mode = modeProxy; c.serve() })
	l.accept(l.listeners[1], func(c *session) { c.mode = modePlain; c.serve() })
	l.accept(l.listeners[2], func(c *session) { c.captured() })
	l.dns = (&nameServer{s: s, t: t}).servers(l.udp, l.listeners[3])
	return l, nil
}

// accept serves a listener until it is closed (step 1).
func (l *link) accept(n net.Listener, serve func(*session)) {
	l.wait.Add(1)
	go func() {
		defer l.wait.Done()
		for {
			conn, err := n.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(20 * time.Millisecond) // out of descriptors: let some go
				continue
			}
			c := &session{s: l.s, t: l.t, link: l, origin: "jail", conn: conn, br: bufio.NewReaderSize(conn, readerSize)}
			if e := l.t.enter(); e != nil {
				l.full(c, e)
				continue
			}
			if !l.add(conn) {
				l.t.leave()
				conn.Close()
				return
			}
			go func() {
				defer l.t.leave()
				defer l.remove(conn)
				c.guard(func() { serve(c) })
			}()
		}
	}()
}

// full refuses a connection above the tenant's limit without spending a
// goroutine on it (step 2).
func (l *link) full(c *session, e *limitError) {
	c.limited("connection", e, "")
	r := e.refusal("")
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(c.conn, "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nRetry-After: 1\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(r.body()), r.body())
	c.conn.Close()
}

func (l *link) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.conns[c] = struct{}{}
	l.wait.Add(1)
	return true
}

func (l *link) remove(c net.Conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	l.wait.Done()
}

// closeWait bounds how long the end of a link waits for what served it: all its
// sockets are closed by then, and what is left can do nothing.
const closeWait = 3 * time.Second

// close ends listeners and connections, cuts what is under way, and waits for
// what served them.
func (l *link) close() {
	l.ended.Store(true)
	for _, n := range l.listeners {
		n.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	for _, s := range l.dns {
		_ = s.ShutdownContext(ctx)
	}
	if l.udp != nil {
		l.udp.Close()
	}
	l.mu.Lock()
	l.closed = true
	l.closeServices()
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.t.cutLink(l)
	served := make(chan struct{})
	go func() {
		l.wait.Wait()
		close(served)
	}()
	select {
	case <-served:
	case <-ctx.Done():
		l.s.log.Warn("a link's connections take long to end", "tenant", l.t.name)
	}
}
