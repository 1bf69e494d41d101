package proxy

import (
	"bufio"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandboxd/secrets"
)

// A reply passes a server's answer to the sandbox (step 20).
type reply struct {
	c      *session
	req    *request
	resp   *http.Response
	search *searcher         // nil: the host is given no credential
	redact *secrets.Redactor // of search, when the head came
	ticket *ticket
	keep   bool

	body    io.Reader
	length  int64
	chunked bool
	status  int
	n       int64 // body bytes passed on
	sent    int64 // of a WebSocket
}

var (
	writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 36<<10) }}
	buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}
)

// pass writes head and body; it returns the fixed word of what went wrong.
func (a *reply) pass(ctx context.Context) string {
	a.status = a.resp.StatusCode
	if a.status == http.StatusSwitchingProtocols && a.req.upgrade {
		a.keep = false
		return a.webSocket(ctx)
	}
	if a.status < 200 { // 101 without our having asked for it
		a.c.refuse(a.req.head, failed("upstream_failed", a.req.host))
		a.keep = false
		return "upstream_failed"
	}
	if a.search != nil {
		a.redact = a.search.now()
	}
	if r := a.decode(); r != nil {
		a.keep = a.keep && a.c.drain(a.req.head)
		a.c.refuse(a.req.head, r)
		return r.reason
	}
	w, ok := writers.Get().(*bufio.Writer)
	if !ok {
		return "internal"
	}
	defer writers.Put(w)
	defer w.Reset(nil)
	w.Reset(&slowConn{Conn: a.c.conn, read: a.c.s.limits.Idle, write: a.c.s.limits.Idle})
	a.head(w)
	if err := a.copy(w); err != nil {
		// The head is gone: all that is left is to break off, so that the
		// client sees that the body is not whole.
		a.keep = false
		return a.broken(ctx, err)
	}
	return ""
}

func (a *reply) broken(ctx context.Context, err error) string {
	if errors.Is(context.Cause(ctx), context.Canceled) || errors.Is(err, errClient) {
		return "client_gone"
	}
	return reason(ctx, err)
}

// decode makes the body readable where a credential must be looked for.
func (a *reply) decode() *refusal {
	a.body, a.length = a.resp.Body, a.resp.ContentLength
	if a.redact == nil {
		return nil
	}
	if a.status == http.StatusPartialContent { // nobody asked for a part
		return failed("partial_answer", a.req.host)
	}
	if a.bodyless() {
		return nil
	}
	coding := strings.Join(a.resp.Header.Values("Content-Encoding"), ",")
	switch strings.ToLower(strings.TrimSpace(coding)) {
	case "", "identity":
		return nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(a.resp.Body)
		if err != nil {
			return failed("encoded_answer", a.req.host)
		}
		a.body, a.length = z, -1
		a.resp.Header.Del("Content-Encoding")
		return nil
	case "deflate":
		z, err := zlib.NewReader(a.resp.Body)
		if err != nil {
			return failed("encoded_answer", a.req.host)
		}
		a.body, a.length = z, -1
		a.resp.Header.Del("Content-Encoding")
		return nil
	}
	return failed("encoded_answer", a.req.host)
}

func (a *reply) bodyless() bool {
	return a.req.head.Method == "HEAD" || a.status == 204 || a.status == 304
}

// head writes the answer's head anew. A redirect passes like any other answer:
// the client's next request is decided by itself (step 18).
func (a *reply) head(w *bufio.Writer) {
	fmt.Fprintf(w, "HTTP/1.1 %03d %s\r\n", a.status, statusText(a.status))
	named := map[string]bool{}
	for _, v := range a.resp.Header.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			named[strings.ToLower(strings.Trim(name, " \t"))] = true
		}
	}
	keys := make([]string, 0, len(a.resp.Header))
	for key := range a.resp.Header {
		if lower := strings.ToLower(key); !dropped(lower) && !named[lower] && (a.redact == nil || !a.redact.Names(key)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		for _, v := range a.resp.Header[key] {
			if a.redact != nil {
				v = a.redact.Text(v)
			}
			writeField(w, key, v)
		}
	}
	switch {
	case a.status == 204:
	case a.length >= 0:
		writeField(w, "Content-Length", strconv.FormatInt(a.length, 10))
	case !a.bodyless():
		a.chunked = true
		writeField(w, "Transfer-Encoding", "chunked")
	}
	if !a.keep {
		writeField(w, "Connection", "close")
	}
	_, _ = w.WriteString("\r\n")
}

// writeField writes one field; the transport has refused values with line
// ends, and names with anything but token characters.
func writeField(w *bufio.Writer, name, value string) {
	_, _ = w.WriteString(name)
	_, _ = w.WriteString(": ")
	_, _ = w.WriteString(value)
	_, _ = w.WriteString("\r\n")
}

// errClient marks a failure on the sandbox's side.
var errClient = errors.New("the client is gone")

// copy streams the body: what has arrived is passed on at once.
func (a *reply) copy(w *bufio.Writer) error {
	if a.bodyless() {
		return flush(w)
	}
	buf, ok := buffers.Get().(*[]byte)
	if !ok {
		return errClient
	}
	defer buffers.Put(buf)
	var stream *secrets.Stream
	if a.redact != nil {
		stream = a.redact.Stream()
	}
	for {
		n, err := a.body.Read(*buf)
		piece := (*buf)[:n]
		if stream != nil {
			stream.Use(a.search.now()) // a value may have been replaced meanwhile
			piece = stream.Write(piece)
		}
		if limit := a.ticket.received(len(piece)); limit != nil {
			_ = flush(w)
			return limit
		}
		a.write(w, piece)
		if err == io.EOF {
			if stream != nil {
				a.write(w, stream.Flush())
			}
			if a.chunked {
				_, _ = w.WriteString("0\r\n\r\n")
			}
			return flush(w)
		}
		if err != nil {
			_ = flush(w)
			return err
		}
		if len(piece) > 0 {
			if err := flush(w); err != nil {
				return err
			}
		}
	}
}

func (a *reply) write(w *bufio.Writer, p []byte) {
	if len(p) == 0 {
		return
	}
	a.n += int64(len(p))
	if a.chunked {
		var size [18]byte
		_, _ = w.Write(append(strconv.AppendInt(size[:0], int64(len(p)), 16), '\r', '\n'))
	}
	_, _ = w.Write(p)
	if a.chunked {
		_, _ = w.WriteString("\r\n")
	}
}

func flush(w *bufio.Writer) error {
	if err := w.Flush(); err != nil {
		return errClient
	}
	return nil
}

// idleDeadline is when a connection that does nothing is given up.
func (s *Server) idleDeadline() time.Time { return time.Now().Add(s.limits.Idle) }
