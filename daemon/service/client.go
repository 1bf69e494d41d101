package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"sandboxd/policy"
)

// MaxAnswer is the largest answer of a service, in bytes.
const MaxAnswer = 16 << 20

const maxHeader = 16 << 10

// A Call is what a service is asked.
type Call struct {
	ID      string          `json:"call_id"`
	Tenant  string          `json:"tenant"`
	RunID   string          `json:"run_id"`
	Binding string          `json:"binding"`
	Method  string          `json:"method"`
	Args    json.RawMessage `json:"args"`
}

// A RefusedError is the service's own error, for the code.
type RefusedError struct{ Message string }

func (e *RefusedError) Error() string { return e.Message }

// A Client calls one service. It may be used by many goroutines.
type Client struct {
	slots *Slots
	http  *http.Transport
}

// New makes a client. It connects for each call and keeps no connection, so
// that a restarted service is found, and no call is sent over one that is half
// closed.
func New(s *policy.Service) *Client {
	return &Client{slots: NewSlots(s.Concurrency), http: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, s.Socket, s.UID) },
	}}
}

// Call asks the service and returns its result, which is JSON. The error is
// *RefusedError, *Error, or that of ctx when the run ended or its time was over.
func (c *Client) Call(ctx context.Context, call *Call) (json.RawMessage, error) {
	give, err := c.slots.Take(ctx, call.Tenant)
	if err != nil {
		return nil, &Error{Kind: KindBusy, Message: "its service had no time for the call", Err: err}
	}
	defer give()
	body, err := json.Marshal(call)
	if err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	// The body has no GetBody: nothing can send it again.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://service/call", io.NopCloser(bytes.NewReader(body)))
	if err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	req.ContentLength = int64(len(body))
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, failed(ctx, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	if err != nil {
		return nil, failed(ctx, err)
	}
	return answer(resp.StatusCode, text)
}

// failed tells what happened on the way.
func failed(ctx context.Context, err error) error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case ctx.Err() != nil:
		return &Error{Kind: KindTimeout, Message: "its service did not answer in time", Err: ctx.Err()}
	}
	return &Error{Kind: KindProtocol, Message: "its service broke the connection off; whether it did what was asked is not known", Err: err}
}

func answer(status int, text []byte) (json.RawMessage, error) {
	bad := func(format string, args ...any) error {
		return &Error{Kind: KindProtocol, Message: "its service " + fmt.Sprintf(format, args...)}
	}
	switch {
	case status != http.StatusOK:
		return nil, bad("answered with HTTP status %d", status)
	case len(text) > MaxAnswer:
		return nil, bad("answered with more than %d bytes", MaxAnswer)
	}
	var a struct {
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, bad("answered with something else than JSON with result or error")
	}
	switch {
	case a.Error != nil && a.Error.Message == "":
		return nil, bad("gave an error without a message")
	case a.Error != nil:
		return nil, &RefusedError{strings.ToValidUTF8(a.Error.Message, "\uFFFD")}
	case a.Result == nil:
		return nil, bad("gave neither result nor error")
	}
	return a.Result, nil
}
