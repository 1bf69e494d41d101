package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"sandboxd/netproxy/internal/names"
	"sandboxd/netproxy/internal/strict"
)

// A mode says what a connection may ask for; it follows from the listener
// alone.
type mode int

const (
	// modeProxy: CONNECT, or absolute http targets.
	modeProxy mode = iota
	// modePlain: a connection to port 80 that was captured.
	modePlain
	// modeTunnel: inside a TLS connection that this proxy terminated.
	modeTunnel
	// modeIsolate: absolute http and https targets, over a socket of the
	// daemon's making.
	modeIsolate
)

// A session is one connection of a sandbox. Its tenant is the listener's
// (step 1); nothing that is sent can change that.
type session struct {
	s      *Server
	t      *tenant
	link   *link // nil for isolates
	origin string
	runID  string
	mode   mode

	conn net.Conn
	br   *bufio.Reader
	// host and port of the tunnel (modeTunnel)
	host names.Host
	port uint16
	// waiting is closed when the client has sent something more, or is gone.
	waiting chan struct{}
}

const readerSize = 4 << 10

// guard serves the connection and closes it. A fault in serving one is not
// allowed to end the others; what the fault says stays out of the log.
func (c *session) guard(serve func()) {
	defer c.join()
	defer c.conn.Close()
	defer func() {
		if recover() != nil {
			c.s.log.Error("a connection was given up after an internal fault", "tenant", c.t.name)
		}
	}()
	serve()
}

// serve reads requests until the connection ends; each is decided by itself.
func (c *session) serve() {
	for {
		if !c.next() {
			return
		}
		_ = c.conn.SetReadDeadline(time.Now().Add(c.s.limits.Header))
		head, err := strict.ReadHead(c.br)
		if err != nil {
			c.refuseHead(err)
			return
		}
		_ = c.conn.SetReadDeadline(time.Time{})
		if !c.one(head) {
			return
		}
	}
}

// next waits for the first byte of a request.
func (c *session) next() bool {
	_ = c.conn.SetReadDeadline(time.Now().Add(c.s.limits.Idle))
	if c.waiting != nil {
		<-c.waiting
		c.waiting = nil
	}
	_, err := c.br.Peek(1)
	return err == nil
}

// watch calls gone when the client goes away before its answer is there. It
// must not be called while a request body is read.
func (c *session) watch(gone func()) {
	done := make(chan struct{})
	c.waiting = done
	go func() {
		defer close(done)
		if _, err := c.br.Peek(1); err != nil {
			gone()
		}
	}()
}

func (c *session) refuseHead(err error) {
	var r *refusal
	switch {
	case errors.Is(err, strict.ErrTooLarge):
		r = &refusal{status: 431, code: "too_large", reason: "header_too_large",
			message: fmt.Sprintf("a request head may have %d bytes and %d fields", strict.MaxHead, strict.MaxFields), closing: true}
	case errors.Is(err, strict.ErrVersion):
		r = &refusal{status: 505, code: "invalid_request", reason: "http_version", message: strict.ErrVersion.Error(), closing: true}
	case errors.Is(err, strict.ErrSyntax):
		r = malformed("malformed_request", err.Error())
	case errors.Is(err, os.ErrDeadlineExceeded):
		r = &refusal{status: 408, code: "invalid_request", reason: "header_timeout", message: "the request head took too long", closing: true}
	default:
		return
	}
	c.reject(nil, r)
}

// A request is one that was read and whose target is clear.
type request struct {
	head   *strict.Head
	scheme string
	host   names.Host
	port   uint16
	path   string
	query  string // with its question mark, if there is one
	// upgrade says that it asks for a WebSocket and may have one
	upgrade bool
}

// one answers one request and reports whether another may follow.
func (c *session) one(head *strict.Head) bool {
	if e := c.t.charge(); e != nil { // step 2
		c.limited("request", e, c.hostOf(head))
		c.refuse(head, e.refusal(""))
		return c.drain(head)
	}
	if head.Method == "CONNECT" {
		c.connect(head)
		return false
	}
	req, r := c.target(head)
	if r != nil {
		c.reject(head, r)
		return !r.closing && c.drain(head)
	}
	return c.forward(req)
}

// reject refuses a request whose target is not clear, and puts that on record.
func (c *session) reject(head *strict.Head, r *refusal) {
	rec := c.record("request")
	rec.d.Host = r.host
	if head != nil {
		rec.d.Method = head.Method
	}
	rec.refused(r.reason)
	c.refuse(head, r)
}

// drain reports whether the connection can go on after an answer that was
// given without reading the body: only if there is none.
func (c *session) drain(head *strict.Head) bool { return head.Length == 0 && !head.Close }

// target finds what a request is for (steps 3, 5, 9).
func (c *session) target(head *strict.Head) (*request, *refusal) {
	req := &request{head: head}
	origin := head.Target
	var err error
	switch c.mode {
	case modePlain:
		req.scheme = "http"
		if req.host, req.port, err = names.SplitHostPort(head.Host, 80); err != nil || req.port != 80 {
			return nil, malformed("host_invalid", "the Host is not a valid host on port 80")
		}
	case modeTunnel:
		req.scheme, req.host, req.port = "https", c.host, c.port
		h, port, err := names.SplitHostPort(head.Host, 443)
		if err != nil || h != c.host || port != c.port {
			return nil, misdirected(c.host, "inside a tunnel to "+c.host.Name+" the Host must be the same")
		}
	default:
		authority, rest, r := c.absolute(req, head)
		if r != nil {
			return nil, r
		}
		origin = rest
		if req.host, req.port, err = names.SplitHostPort(authority, defaultPort(req.scheme)); err != nil {
			return nil, malformed("host_invalid", "the target's host is not valid")
		}
		h, port, err := names.SplitHostPort(head.Host, defaultPort(req.scheme))
		if err != nil || h != req.host || port != req.port {
			return nil, misdirected(req.host, "the Host must be the target's host")
		}
	}
	if origin == "" || origin[0] != '/' {
		return nil, misdirected(req.host, "the request target must be a path here")
	}
	req.path = origin
	if i := strings.IndexByte(origin, '?'); i >= 0 {
		req.path, req.query = origin[:i], origin[i:]
	}
	return req, nil
}

// absolute splits an absolute target into authority and path.
func (c *session) absolute(req *request, head *strict.Head) (authority, path string, r *refusal) {
	rest, http := strings.CutPrefix(head.Target, "http://")
	req.scheme = "http"
	if !http {
		var https bool
		if rest, https = strings.CutPrefix(head.Target, "https://"); !https || c.mode != modeIsolate {
			return "", "", malformed("target_form", "this is a proxy: use CONNECT for https, and an absolute http:// target")
		}
		req.scheme = "https"
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0:
		return rest, "/", nil
	case rest[i] == '?':
		return rest[:i], "/" + rest[i:], nil
	}
	return rest[:i], rest[i:], nil
}

// refuse answers by itself. head is nil when none could be read.
func (c *session) refuse(head *strict.Head, r *refusal) {
	body := r.body()
	closing := r.closing || head == nil || !c.drain(head)
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s: %s\r\n",
		r.status, statusText(r.status), len(body), RefusedHeader, r.reason)
	if r.retry && (r.status == 429 || r.status == 503) {
		fmt.Fprintf(&b, "Retry-After: %d\r\n", max(1, int(r.after.Seconds())))
	}
	if closing {
		b.WriteString("Connection: close\r\n")
	}
	b.WriteString("\r\n")
	if head == nil || head.Method != "HEAD" {
		b.Write(body)
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.s.limits.Header))
	if _, err := io.WriteString(c.conn, b.String()); err == nil && closing {
		c.linger()
	}
}

// linger lets the answer arrive: closing with unread bytes would reset the
// connection, and the client would never see what it did wrong.
func (c *session) linger() {
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	if c.waiting != nil {
		return // another goroutine reads; the body was read before
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, c.br, 16<<20)
}

// record is a decision's skeleton.
func (c *session) record(kind string) *record {
	r := &record{s: c.s, start: time.Now()}
	r.d.Tenant, r.d.RunID, r.d.Origin, r.d.Kind = c.t.name, c.runID, c.origin, kind
	return r
}

// limited puts a refusal by a limit of the tenant's on record. A flood of them
// would flood the record, too: some stand for all.
func (c *session) limited(kind string, e *limitError, host string) {
	if suppressed, ok := c.t.mayRecord(); ok {
		rec := c.record(kind)
		rec.d.Host, rec.d.Suppressed = host, suppressed
		rec.limited(e)
	}
}

// hostOf is the host that a request names, for the record alone.
func (c *session) hostOf(head *strict.Head) string {
	if head.Method == "CONNECT" {
		if h, _, err := names.SplitHostPort(head.Target, 443); err == nil {
			return h.Name
		}
		return ""
	}
	if req, r := c.target(head); r == nil {
		return req.host.Name
	}
	return ""
}

// flight registers what is about to be done under a rule.
func (c *session) flight(g *rule, allowed func(*ruleset) bool) (context.Context, *flight, bool) {
	ctx, cancel := flightContext(c.t.longest(g, c.s.limits.Total))
	f := &flight{link: c.link, allowed: allowed, cancel: cancel}
	if !c.t.start(f) {
		cancel(errRevoked)
		return ctx, f, false
	}
	return ctx, f, true
}

func (c *session) land(f *flight) {
	c.t.end(f)
	f.cancel(nil)
}
