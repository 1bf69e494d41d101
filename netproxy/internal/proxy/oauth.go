package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"sandboxd/netproxy/internal/names"
	"sandboxd/policy"
	"sandboxd/secrets"
)

// oauthToken gets a token with a client's id and secret. The request takes the
// same way as a sandbox's: addresses vetted and pinned (steps 11, 12), TLS
// verified (step 13), no redirect followed, on record before it is made.
func (s *Server) oauthToken(ctx context.Context, c *session, in *policy.Injection, secret secrets.Value) (secrets.Value, time.Time, error) {
	t, err := s.newTokenTransport(c, in)
	if err != nil {
		return secrets.Value{}, time.Time{}, errToken
	}
	defer t.pool.close()
	style := oauth2.AuthStyleInHeader
	if in.OAuth2.Auth == "body" {
		style = oauth2.AuthStyleInParams
	}
	cfg := clientcredentials.Config{
		ClientID: in.OAuth2.ClientID, ClientSecret: secrets.Reveal(secret), TokenURL: in.OAuth2.TokenURL,
		Scopes: in.OAuth2.Scopes, AuthStyle: style,
	}
	if in.OAuth2.Audience != "" {
		cfg.EndpointParams = url.Values{"audience": {in.OAuth2.Audience}}
	}
	client := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	got, err := cfg.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		return secrets.Value{}, time.Time{}, errToken // the error may quote the server
	}
	expires := got.Expiry
	if expires.IsZero() {
		expires = time.Now().Add(tokenLife)
	}
	v, err := secrets.NewValue([]byte(got.AccessToken))
	if err != nil {
		return secrets.Value{}, time.Time{}, errToken
	}
	return v, expires, nil
}

// A tokenTransport makes requests to one token endpoint and nothing else.
type tokenTransport struct {
	c    *session
	in   *policy.Injection
	rule *rule
	pool *pool
	host names.Host
	port uint16
}

func (s *Server) newTokenTransport(c *session, in *policy.Injection) (*tokenTransport, error) {
	u, err := url.Parse(in.OAuth2.TokenURL)
	if err != nil || u.Scheme != "https" {
		return nil, errToken
	}
	h, err := names.Canonical(u.Hostname())
	if err != nil {
		return nil, err
	}
	port := uint16(443)
	if text := u.Port(); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, err
		}
		port = uint16(n)
	}
	r := &rule{Rule: policy.Rule{ID: "credential/" + in.Name, Host: h.Name, Scheme: "https", Ports: []uint16{port},
		Addresses: in.OAuth2.Addresses, Resolve: in.OAuth2.Resolve}, host: h.Name}
	return &tokenTransport{c: c, in: in, rule: r, pool: s.newPool(newTenant(c.t.name, s.limits))(r), host: h, port: port}, nil
}

// RoundTrip implements http.RoundTripper.
func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" || req.URL.Hostname() != t.hostAsWritten() {
		return nil, errToken
	}
	rec := t.c.record("token")
	rec.target("https", t.host, t.port)
	rec.d.Method, rec.d.Path, rec.d.Credential = req.Method, clip(req.URL.EscapedPath()), t.in.Name
	addrs, err := t.c.s.resolve(req.Context(), t.pool.tenant, t.rule, t.host)
	if err != nil {
		rec.refused(reason(req.Context(), err))
		return nil, err
	}
	rec.granted(t.rule, addrs)
	if !rec.decided(req.Context()) { // step 22
		return nil, errToken
	}
	resp, err := t.pool.roundTrip("https", t.host, t.port, req)
	if err != nil {
		rec.finished(reason(req.Context(), err), 0, 0, 0)
		return nil, fmt.Errorf("%w: %w", errToken, err)
	}
	rec.finished("", resp.StatusCode, max(req.ContentLength, 0), max(resp.ContentLength, 0))
	return resp, nil
}

func (t *tokenTransport) hostAsWritten() string {
	u, err := url.Parse(t.in.OAuth2.TokenURL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
