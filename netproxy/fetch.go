package netproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/proxy"
)

// Fetch returns the way out for one run of an isolate. A refusal is a
// *DeniedError, a failure on the way an *UpstreamError. Redirects come back as
// they are; cookies and environment play no part. Callers that are done with it
// call CloseIdleConnections on an http.Client around it, or on the value
// itself.
func (p *Proxy) Fetch(tenant, runID string) http.RoundTripper {
	f := &fetch{}
	f.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return p.dialFetch(ctx, control.Fetch{Tenant: tenant, RunID: runID})
		},
		DisableCompression:     true,
		MaxIdleConns:           4,
		IdleConnTimeout:        5 * time.Second,
		MaxResponseHeaderBytes: 512 << 10,
	}
	return f
}

// dialFetch gives the proxy process one end of a new socket pair; which tenant
// and run it speaks for is said by us, not over the socket.
func (p *Proxy) dialFetch(ctx context.Context, who control.Fetch) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("netproxy: fetch: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "fetch"), os.NewFile(uintptr(fds[1]), "fetch-proxy")
	defer ours.Close()
	defer theirs.Close()
	if err := p.call(ctx, control.MethodFetch, who, nil, theirs); err != nil {
		return nil, err
	}
	return net.FileConn(ours)
}

// fetch speaks to the proxy as an HTTP client to a proxy, with absolute
// targets for https too: the decision is the proxy's, and so is TLS.
type fetch struct{ transport *http.Transport }

// CloseIdleConnections implements what http.Client looks for.
func (f *fetch) CloseIdleConnections() { f.transport.CloseIdleConnections() }

// RoundTrip implements http.RoundTripper.
func (f *fetch) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL == nil || r.URL.Scheme != "https" && r.URL.Scheme != "http" || r.URL.Host == "" {
		closeBody(r)
		return nil, &DeniedError{Reason: "target_form", Message: "fetch needs an absolute http or https URL"}
	}
	if r.URL.User != nil {
		closeBody(r)
		return nil, &DeniedError{Host: r.URL.Hostname(), Reason: "target_form", Message: "fetch takes no user or password in a URL"}
	}
	out := r.Clone(r.Context())
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	out.URL = &url.URL{
		Scheme: "http", Host: "proxy", Opaque: r.URL.Scheme + "://" + r.URL.Host + path,
		RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery,
	}
	out.Host = r.URL.Host
	resp, err := f.transport.RoundTrip(out)
	if err != nil {
		if r.Context().Err() == nil && !errors.Is(err, ErrClosed) {
			return nil, &UpstreamError{Host: r.URL.Hostname(), Reason: "connection_lost",
				Message: r.URL.Hostname() + ": the connection ended before an answer came; the request may have been sent"}
		}
		return nil, err
	}
	resp.Request = r
	if why := resp.Header.Get(proxy.RefusedHeader); why != "" {
		defer resp.Body.Close()
		return nil, refusedError(r.URL.Hostname(), why, resp)
	}
	return resp, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

func refusedError(host, why string, resp *http.Response) error {
	var body proxy.Body
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil {
		err = json.Unmarshal(raw, &body)
	}
	if err != nil {
		return errors.Join(&UpstreamError{Host: host, Reason: why}, err)
	}
	if body.Error.Code == "internal" {
		return &UpstreamError{Host: host, Reason: why, Message: body.Error.Message}
	}
	message := body.Error.Message
	if body.Error.Hint != "" {
		message += "; " + body.Error.Hint
	}
	return &DeniedError{Host: host, Reason: why, Rule: body.Error.Rule, Message: message}
}
