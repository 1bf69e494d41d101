package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/isolate"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

const (
	// maxFetchBody is the largest body that a fetch of an isolate brings back.
	maxFetchBody = 8 << 20
	maxRedirects = 5
	maxHeaders   = 200
)

// fetch answers the code's fetch: the run's own outbound list first, then the
// proxy, which decides by policy.
func (h *host) fetch(ctx context.Context, args json.RawMessage) (json.RawMessage, error) {
	var list []isolate.FetchRequest
	if err := json.Unmarshal(args, &list); err != nil || len(list) != 1 {
		return nil, badCall("fetch takes one request")
	}
	mode := list[0].Redirect
	if mode != "" && !slices.Contains(redirectModes, mode) {
		return nil, badCall("fetch: redirect is one of %s", strings.Join(redirectModes, ", "))
	}
	req, err := httpRequest(context.WithValue(ctx, redirectKey{}, mode), &list[0])
	if err != nil {
		return nil, err
	}
	if err := h.permit(req); err != nil {
		return nil, err
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, h.fetchFailed(req, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxFetchBody+1))
	h.bytesIn.Add(int64(len(body)))
	if err != nil {
		return nil, h.fetchFailed(req, err)
	}
	if len(body) > maxFetchBody {
		return nil, badCall("the answer of %s is larger than %d bytes", clip(req.URL.Host, 255), maxFetchBody)
	}
	out := isolate.FetchResponse{Status: resp.StatusCode, StatusText: http.StatusText(resp.StatusCode), URL: resp.Request.URL.String(), Redirected: resp.Request != req, Body: body, Headers: [][2]string{}}
	for name, values := range resp.Header {
		for _, v := range values {
			out.Headers = append(out.Headers, [2]string{strings.ToLower(name), v})
		}
	}
	slices.SortFunc(out.Headers, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return answerJSON(out)
}

func httpRequest(ctx context.Context, f *isolate.FetchRequest) (*http.Request, error) {
	if f.Method == "" {
		f.Method = http.MethodGet
	}
	if len(f.Headers) > maxHeaders {
		return nil, badCall("fetch: more than %d headers", maxHeaders)
	}
	req, err := http.NewRequestWithContext(ctx, f.Method, f.URL, bytes.NewReader(f.Body))
	if err != nil {
		return nil, badCall("fetch: the URL or method is not valid")
	}
	if (req.URL.Scheme != "https" && req.URL.Scheme != "http") || req.URL.Host == "" {
		return nil, badCall("fetch: the URL must be absolute, with https or http")
	}
	if req.URL.User != nil {
		return nil, badCall("fetch: the URL must not hold a user or password")
	}
	if len(f.Body) == 0 {
		req.Body, req.GetBody, req.ContentLength = http.NoBody, nil, 0
	}
	for _, kv := range f.Headers {
		req.Header.Add(kv[0], kv[1])
	}
	return req, nil
}

// permit holds a request against the run's own outbound list and its limit of
// requests; redirects come here, too.
func (h *host) permit(req *http.Request) error {
	if n := h.requests.Add(1); n > int64(h.plan.limits.Requests) {
		h.run.denied(api.Denial{Kind: "limit", What: "requests", Rule: strconv.Itoa(h.plan.limits.Requests), Scope: "run"})
		return &callError{"denied", fmt.Sprintf("more than %d requests, redirects included", h.plan.limits.Requests)}
	}
	h.bytesOut.Add(max(req.ContentLength, 0))
	name, err := policy.CanonicalHost(req.URL.Hostname())
	if err == nil && slices.ContainsFunc(h.plan.request.Outbound.Allow, func(pattern string) bool { return covers(pattern, name) }) {
		return nil
	}
	return h.notAllowed(req)
}

// notAllowed records a request that the caller of the run did not allow. The
// proxy never sees it, so its line in the audit log is written here.
func (h *host) notAllowed(req *http.Request) error {
	what := clip(req.URL.Hostname(), 255)
	d := netproxy.Decision{Time: time.Now().UTC(), Tenant: h.run.tenant, RunID: h.run.id, Origin: "isolate", Kind: "request", Phase: "decided",
		Reason: "not_in_outbound", Scheme: req.URL.Scheme, Host: what, Method: clip(req.Method, 32), Path: clip(req.URL.Path, 500)}
	if _, err := h.d.record(req.Context(), audit.Record{Kind: audit.KindEgress, Tenant: d.Tenant, RunID: d.RunID, Fields: d}); err != nil {
		return err
	}
	h.d.metrics.decided(&d)
	h.run.denied(api.Denial{Kind: "network", What: what, Rule: d.Reason, Time: d.Time, Scope: "run"})
	return &callError{"denied", fmt.Sprintf("fetch to %s is denied: the run may reach only %s", what, clip(strings.Join(h.plan.request.Outbound.Allow, ", "), 500))}
}

// redirectModes are what the code may ask for.
var redirectModes = []string{"follow", "manual", "error"}

// redirectKey is the key of a request's mode in its context.
type redirectKey struct{}

func (h *host) redirect(req *http.Request, via []*http.Request) error {
	switch req.Context().Value(redirectKey{}) {
	case "manual":
		return http.ErrUseLastResponse
	case "error":
		return badCall("fetch: %s answered with a redirect, which the request forbids", clip(via[0].URL.Host, 255))
	}
	if len(via) > maxRedirects {
		return badCall("more than %d redirects", maxRedirects)
	}
	if last := via[len(via)-1]; !strings.EqualFold(last.URL.Host, req.URL.Host) {
		// Path and query are for the host that they were sent to.
		req.Header.Del("Referer")
	}
	return h.permit(req)
}

// fetchFailed says why; a refusal by the proxy is put on record.
func (h *host) fetchFailed(req *http.Request, err error) error {
	var denied *netproxy.DeniedError
	if errors.As(err, &denied) {
		h.run.denied(api.Denial{Kind: "network", What: clip(denied.Host, 255), Rule: denied.Reason, Scope: "run"})
		return denied
	}
	var call *callError
	if errors.As(err, &call) {
		return call
	}
	var upstream *netproxy.UpstreamError
	if errors.As(err, &upstream) {
		return badCall("%s", upstream.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return badCall("fetch to %s did not end in time", clip(req.URL.Host, 255))
	}
	return badCall("fetch to %s failed", clip(req.URL.Host, 255))
}

// fetchStatus reads the HTTP status out of an answer, for the record.
func fetchStatus(answer json.RawMessage) string {
	var r struct {
		Status int `json:"status"`
	}
	if json.Unmarshal(answer, &r) != nil {
		return "ok"
	}
	return strconv.Itoa(r.Status)
}
