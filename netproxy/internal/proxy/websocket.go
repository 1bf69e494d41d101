package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"sandboxd/netproxy/internal/strict"
)

// wantsWebSocket reports whether a request asks for a WebSocket in the one way
// there is (RFC 6455, section 4.1).
func wantsWebSocket(h *strict.Head) bool {
	return h.Method == http.MethodGet && h.Length == 0 && strings.EqualFold(h.Get("Upgrade"), "websocket") &&
		h.Get("Sec-WebSocket-Key") != "" && hasToken(h.Get("Connection"), "upgrade")
}

func hasToken(list, token string) bool {
	for t := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.Trim(t, " \t"), token) {
			return true
		}
	}
	return false
}

// askWebSocket puts back what is left out of every request.
func askWebSocket(h http.Header) {
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
}

// webSocket passes the answer's head on and then carries messages unread, until
// one side is done, a limit is reached or the grant withdrawn (step 19).
func (a *reply) webSocket(ctx context.Context) string {
	up, ok := a.resp.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(a.resp.Header.Get("Upgrade"), "websocket") {
		a.c.refuse(a.req.head, failed("upstream_failed", a.req.host))
		return "upstream_failed"
	}
	idle := a.c.s.limits.Tunnel
	to := &slowConn{Conn: a.c.conn, read: idle, write: idle}
	w := bufio.NewWriter(to)
	_, _ = io.WriteString(w, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
	for _, key := range []string{"Sec-Websocket-Accept", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions"} {
		if v := a.resp.Header.Get(key); v != "" {
			writeField(w, strings.Replace(key, "websocket", "WebSocket", 1), v)
		}
	}
	_, _ = io.WriteString(w, "\r\n")
	if err := flush(w); err != nil {
		return "client_gone"
	}
	both := func() {
		up.Close()
		a.c.conn.Close()
	}
	defer context.AfterFunc(ctx, both)() // step 23, and the time
	out := make(chan error, 1)
	go func() {
		err := carryMessages(up, a.c.br, a.ticket.sent, func() { _ = a.c.conn.SetReadDeadline(time.Now().Add(idle)) })
		both()
		out <- err
	}()
	in := carryMessages(to, up, func(n int) error {
		a.n += int64(n)
		return a.ticket.received(n)
	}, func() {})
	both()
	a.sent = a.ticket.out.Load()
	if err := <-out; errors.Is(context.Cause(ctx), errRevoked) || limitOf(ctx, a.ticket) != nil {
		return a.broken(ctx, errors.Join(err, in))
	}
	return ""
}

// carryMessages copies one direction; before is called ahead of each read.
func carryMessages(dst io.Writer, src io.Reader, count func(int) error, before func()) error {
	buf := make([]byte, 4<<10)
	for {
		before()
		n, err := src.Read(buf)
		if n > 0 {
			if limit := count(n); limit != nil {
				return limit
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}
