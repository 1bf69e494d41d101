package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"sandboxd/daemon/api"
)

// Sockets that are tried when none is named.
var defaultSockets = []string{"/run/sandboxd/admin.sock", "/run/sandboxd/api.sock"}

// DefaultSocket is $SANDBOXD_SOCKET, or else the installed daemon's socket that
// the caller may use.
func DefaultSocket() string {
	if s := os.Getenv("SANDBOXD_SOCKET"); s != "" {
		return s
	}
	for _, s := range defaultSockets {
		if f, err := net.DialTimeout("unix", s, time.Second); err == nil {
			f.Close()
			return s
		}
	}
	return defaultSockets[len(defaultSockets)-1]
}

// An UnreachableError says that no daemon answers.
type UnreachableError struct {
	Socket string
	Err    error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no sandboxd answers at %s: %v", e.Socket, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// A Client calls one daemon. It may be used by many goroutines.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client for the daemon at socket.
func New(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 64, DisableCompression: true}}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// segment escapes one segment of a path: a name that holds slashes or dots must
// not become another path.
func segment(s string) string {
	if s == "." || s == ".." {
		return strings.ReplaceAll(s, ".", "%2E")
	}
	return url.PathEscape(s)
}

// A call is one request.
type call struct {
	method, path string // path is escaped
	query        url.Values
	json         any       // body as JSON, or
	body         io.Reader // as it is
	media        string    // of body
	accept       string
}

// send makes the request; the caller closes the answer's body. An answer that is
// only an error comes back as one.
func (c *Client) send(ctx context.Context, k call) (*http.Response, error) {
	path, err := url.PathUnescape(k.path)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	target := url.URL{Scheme: "http", Host: "sandboxd", Path: path, RawPath: k.path, RawQuery: k.query.Encode()}
	if k.json != nil {
		text, err := json.Marshal(k.json)
		if err != nil {
			return nil, fmt.Errorf("client: encode the request: %w", err)
		}
		k.body, k.media = bytes.NewReader(text), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, k.method, target.String(), k.body)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if k.media != "" {
		req.Header.Set("Content-Type", k.media)
	}
	if k.accept != "" {
		req.Header.Set("Accept", k.accept)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, &UnreachableError{c.socket, err}
	}
	return resp, nil
}

// maxError bounds what is read of an error answer.
const maxError = 64 << 20

// failure reads an error answer.
func failure(resp *http.Response) error {
	var body api.ErrorBody
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err == nil {
		err = json.Unmarshal(text, &body)
	}
	if err != nil || body.Error == nil {
		return fmt.Errorf("client: the daemon answered %s without saying why", resp.Status)
	}
	return body.Error
}

// get makes a call that answers with JSON.
func get[T any](ctx context.Context, c *Client, k call) (*T, error) {
	resp, err := c.send(ctx, k)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return nil, failure(resp)
	}
	out := new(T)
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return nil, fmt.Errorf("client: the answer of %s %s: %w", k.method, k.path, err)
	}
	return out, nil
}

// do makes a call without an answer.
func (c *Client) do(ctx context.Context, k call) error {
	resp, err := c.send(ctx, k)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return failure(resp)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// maxLine bounds one event of a stream.
const maxLine = 64 << 20

// ErrUnfinished says that a stream ended without a result.
var ErrUnfinished = errors.New("client: the stream ended without a result")

// stream makes a call that answers with events. Leaving the loop closes the
// connection, which ends an isolate's run. A stream that was followed and ends
// without a result yields ErrUnfinished at its end.
func (c *Client) stream(ctx context.Context, k call, follow bool) iter.Seq2[api.Event, error] {
	k.accept = "application/x-ndjson"
	return func(yield func(api.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp, err := c.send(ctx, k)
		if err != nil {
			yield(api.Event{}, err)
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode >= 300 {
			yield(api.Event{}, failure(resp))
			return
		}
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(make([]byte, 0, 64<<10), maxLine)
		for lines.Scan() {
			var e api.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				yield(e, fmt.Errorf("client: an event: %w", err))
				return
			}
			if e.Type == api.EventError && e.Error != nil {
				yield(e, e.Error)
				return
			}
			if !yield(e, nil) || e.Type == api.EventResult {
				return
			}
		}
		if err := lines.Err(); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			yield(api.Event{}, err)
			return
		}
		if follow {
			yield(api.Event{}, ErrUnfinished)
		}
	}
}
