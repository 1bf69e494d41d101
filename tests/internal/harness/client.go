package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"sandboxd/daemon/api"
)

// A Client speaks HTTP over one of the daemon's sockets, and nothing more: what
// a test sends is what goes over the wire, wrong as it may be.
type Client struct {
	Socket string
	http   *http.Client
}

// NewClient calls the daemon on socket.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{Socket: socket, http: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 4}}}
}

// An Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Error is the error in the answer, nil if it holds none.
func (a *Answer) Error() *api.Error {
	var body api.ErrorBody
	if json.Unmarshal(a.Body, &body) != nil {
		return nil
	}
	return body.Error
}

// Do sends a request. A body of type []byte goes as it is, nil is none, and
// anything else goes as JSON. Header holds pairs of names and values.
func (c *Client) Do(ctx context.Context, method, path string, body any, header ...string) (*Answer, error) {
	resp, err := c.send(ctx, method, path, body, header)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return &Answer{Status: resp.StatusCode, Header: resp.Header, Body: text}, nil
}

// Stream sends a request and calls each for every event of its answer; false
// ends it. An answer that is an error is returned as *api.Error.
func (c *Client) Stream(ctx context.Context, method, path string, body any, each func(api.Event) bool) error {
	resp, err := c.send(ctx, method, path, body, []string{"Accept", "application/x-ndjson"})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if e := (&Answer{Body: text}).Error(); e != nil {
			return e
		}
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e api.Event
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("%s %s: event %q: %w", method, path, line, err)
			}
			if !each(e) {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *Client) send(ctx context.Context, method, path string, body any, header []string) (*http.Response, error) {
	var reader io.Reader
	contentType := "application/json"
	switch b := body.(type) {
	case nil:
		contentType = ""
	case []byte:
		reader = bytes.NewReader(b)
	case string:
		reader = strings.NewReader(b)
	case io.Reader:
		reader = b
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://sandboxd"+path, reader)
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.http.Do(req)
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
