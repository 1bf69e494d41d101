package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"reflect"
	"strings"
	"sync"

	"sandboxd/netproxy/internal/names"
	"sandboxd/netproxy/internal/strict"
)

// forward decides on one request, makes it and passes the answer on. It
// reports whether another request may follow on the connection.
func (c *session) forward(req *request) bool {
	rec := c.record("request")
	rec.target(req.scheme, req.host, req.port)
	rec.d.Method, rec.d.Path = req.head.Method, clip(req.path)
	g, r := c.decide(req)
	if r != nil {
		rec.refused(r.reason)
		c.refuse(req.head, r)
		return !r.closing && c.drain(req.head)
	}
	k, limit := c.t.admit(g)
	if limit == nil {
		limit = k.expect(req.head.Length, 0)
	}
	defer k.done()
	if limit != nil { // step 2
		rec.d.Rule = g.ID
		rec.limited(limit)
		c.refuse(req.head, limit.refusal(req.host.Name))
		return c.drain(req.head)
	}
	ctx, f, ok := c.flight(g, func(set *ruleset) bool {
		again, _ := set.request(req.scheme, req.host, req.port, req.head.Method, req.path)
		return again != nil && reflect.DeepEqual(again.Credential, g.Credential) && (again.WebSocket || !req.upgrade)
	})
	defer c.land(f)
	if !ok {
		rec.refused("revoked")
		c.refuse(req.head, failed("revoked", req.host))
		return false
	}
	kept := c.findPackage(ctx, g, req)
	defer kept.close()
	var addrs []netip.Addr
	if !kept.fresh() {
		var err error
		if addrs, err = c.s.resolve(ctx, c.t, g, req.host); err != nil { // step 11
			r := upstreamRefusal(ctx, err, req.host)
			rec.refused(r.reason)
			c.refuse(req.head, r)
			return !r.closing && c.drain(req.head)
		}
	}
	rec.granted(g, addrs)
	if g.Credential != nil {
		rec.d.Credential = g.Credential.Name
	}
	if !rec.decided(ctx) { // step 22: not on record, not done
		c.refuse(req.head, rec.undecided())
		return c.drain(req.head)
	}
	return c.exchange(ctx, f, k, g, kept, req, rec)
}

// decide matches the request with the rules in force now (steps 6, 10, 14,
// 16, 19).
func (c *session) decide(req *request) (*rule, *refusal) {
	rules := c.t.rules.Load()
	wellFormed, canonical := checkPath(req.path)
	if !wellFormed || !canonical && rules.narrow(req.scheme, req.host, req.port) {
		return nil, malformed("path_invalid", "the path is not in canonical form")
	}
	method := req.head.Method
	g, why := rules.request(req.scheme, req.host, req.port, method, req.path)
	if g == nil {
		return nil, denied(why, req.scheme, req.host, req.port, method, req.path)
	}
	if rules.holdersOf(req.host) != nil { // what it answers must be searched, whatever else a rule allows
		if method == "TRACE" {
			return nil, denied("method_denied", req.scheme, req.host, req.port, method, req.path)
		}
		if up := req.head.Get("Upgrade"); up != "" && !strings.EqualFold(up, "h2c") {
			return nil, denied("upgrade_denied", req.scheme, req.host, req.port, method, req.path)
		}
	}
	if in := c.stray(g, req); in != nil {
		return nil, strayPlaceholder(req, in)
	}
	if g.Credential != nil && req.scheme != "https" {
		return nil, denied("cleartext", req.scheme, req.host, req.port, method, req.path)
	}
	if up := req.head.Get("Upgrade"); up != "" && !strings.EqualFold(up, "h2c") { // step 19
		if !g.WebSocket || !wantsWebSocket(req.head) || c.link == nil {
			return nil, denied("upgrade_denied", req.scheme, req.host, req.port, method, req.path)
		}
		req.upgrade = true
	}
	return g, nil
}

// exchange makes the request and passes the answer on.
func (c *session) exchange(ctx context.Context, f *flight, k *ticket, g *rule, kept *packageRequest, req *request, rec *record) bool {
	body := strict.NewBody(c.br, req.head)
	out := c.build(ctx, g, req, &metered{body, k})
	var search *searcher
	if held := c.t.rules.Load().holdersOf(req.host); held != nil {
		search = &searcher{c.s, held}
		readable(out.Header)
	}
	if g.Credential != nil {
		if r := c.inject(ctx, g, req, out); r != nil {
			_, sent := body.Done()
			rec.finished(r.reason, r.status, sent, 0)
			r.closing = r.closing || req.head.Length != 0
			c.refuse(req.head, r)
			return c.drain(req.head)
		}
	}
	if req.upgrade {
		askWebSocket(out.Header)
	} else if req.head.Length == 0 && !req.head.Close {
		c.watch(func() { f.cancel(context.Canceled) })
	}
	resp, err := c.roundTrip(g, kept, req, out, rec) // step 17
	if err == nil {
		if limit := k.expect(0, resp.ContentLength); limit != nil && req.head.Method != "HEAD" {
			resp.Body.Close()
			err = limit
		}
	} else if limit := limitOf(ctx, k); limit != nil {
		err = limit
	}
	if err != nil {
		r := upstreamRefusal(ctx, err, req.host)
		_, sent := body.Done()
		rec.cutBy(limitIn(ctx, err))
		rec.finished(r.reason, r.status, sent, 0)
		r.closing = r.closing || req.head.Length != 0
		c.refuse(req.head, r)
		return !r.closing && c.drain(req.head)
	}
	defer resp.Body.Close()
	a := &reply{c: c, req: req, resp: resp, search: search, ticket: k, keep: !req.head.Close}
	if done, _ := body.Done(); !done {
		// The server answered before it read everything; what is left would be
		// taken for the next request.
		a.keep = false
	}
	why := a.pass(ctx)
	done, sent := body.Done()
	rec.cutBy(limitOf(ctx, k))
	rec.finished(why, a.status, sent+a.sent, a.n)
	return why == "" && a.keep && done
}

// findPackage looks for a kept answer where the rule has a package cache.
func (c *session) findPackage(ctx context.Context, g *rule, req *request) *packageRequest {
	if g.Cache == "" {
		return nil
	}
	r := c.s.packages.request(c.build(ctx, g, req, http.NoBody), g)
	if r != nil {
		r.find(ctx)
	}
	return r
}

// roundTrip makes the request, or has it answered from what is kept.
func (c *session) roundTrip(g *rule, kept *packageRequest, req *request, out *http.Request, rec *record) (*http.Response, error) {
	fetch := func(out *http.Request) (*http.Response, error) {
		return g.pool.roundTrip(req.scheme, req.host, req.port, out)
	}
	if kept == nil {
		return fetch(out)
	}
	resp, how, err := kept.answer(fetch)
	rec.d.Cache = how
	return resp, err
}

// hopByHop are fields about the connection, and those by which a client could
// speak for another or about the proxy (step 15).
var hopByHop = map[string]bool{
	"connection": true, "proxy-connection": true, "keep-alive": true, "te": true, "trailer": true,
	"transfer-encoding": true, "upgrade": true, "http2-settings": true, "host": true, "content-length": true,
	"expect": true, "forwarded": true, "via": true, "x-real-ip": true, "alt-svc": true,
}

func dropped(lower string) bool {
	return hopByHop[lower] || strings.HasPrefix(lower, "proxy-") || strings.HasPrefix(lower, "x-forwarded-") ||
		strings.HasPrefix(lower, "sandboxd-")
}

// overrides are fields by which some servers take another method or path than
// the one that was decided on, and names that some of them read as another
// field's: where a rule looks at either, none of them is sent on.
func overrides(lower string) bool {
	switch lower {
	case "x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-original-uri", "x-rewrite-url":
		return true
	}
	return strings.ContainsFunc(lower, func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') })
}

// build makes a new request (step 15): nothing of the one that was read is
// sent on as such. What is left out: fields about the connection, fields named
// by Connection, fields that speak for somebody else.
func (c *session) build(ctx context.Context, g *rule, req *request, body io.Reader) *http.Request {
	named := map[string]bool{}
	for _, f := range req.head.Fields {
		if strings.EqualFold(f.Name, "Connection") {
			for name := range strings.SplitSeq(f.Value, ",") {
				named[strings.ToLower(strings.Trim(name, " \t"))] = true
			}
		}
	}
	narrowed := len(g.Methods) > 0 || len(g.Paths) > 0 || g.Credential != nil
	header := make(http.Header, len(req.head.Fields))
	for _, f := range req.head.Fields {
		if lower := strings.ToLower(f.Name); !dropped(lower) && !named[lower] && !(narrowed && overrides(lower)) {
			key := http.CanonicalHeaderKey(f.Name)
			header[key] = append(header[key], f.Value)
		}
	}
	if _, ok := header["User-Agent"]; !ok {
		header["User-Agent"] = nil // or the library adds its own
	}
	out := &http.Request{
		Method: req.head.Method,
		// Opaque sends the very bytes that were matched (step 10).
		URL: &url.URL{
			Scheme: req.scheme, Host: req.host.Authority(req.port, 0), Opaque: req.path,
			RawQuery: strings.TrimPrefix(req.query, "?"), ForceQuery: req.query == "?",
		},
		Host:          req.host.Authority(req.port, defaultPort(req.scheme)),
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        header,
		Body:          http.NoBody,
		ContentLength: max(req.head.Length, -1),
	}
	if req.head.Length != 0 {
		out.Body = &sending{c: c, body: body, expect: req.head.Continue}
	}
	return out.WithContext(fewInterim(ctx))
}

// maxInterim is how many 1xx answers may come before the real one (step 20).
const maxInterim = 5

var errInterim = errors.New("too many interim answers")

func fewInterim(ctx context.Context) context.Context {
	n := 0
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			if n++; n > maxInterim {
				return errInterim
			}
			return nil
		},
	})
}

// sending is a request body; a client that asked first is told to go on when
// the server is really being sent to.
type sending struct {
	c      *session
	body   io.Reader
	expect bool
	once   sync.Once
}

func (b *sending) Read(p []byte) (int, error) {
	if b.expect {
		b.once.Do(func() { _, _ = io.WriteString(b.c.conn, "HTTP/1.1 100 Continue\r\n\r\n") })
	}
	return b.body.Read(p)
}

func (b *sending) Close() error { return nil }

// metered counts a request's body.
type metered struct {
	io.Reader
	k *ticket
}

func (b *metered) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if limit := b.k.sent(n); limit != nil {
		return 0, limit
	}
	return n, err
}

// clip bounds what goes on record.
func clip(path string) string {
	if len(path) > 1024 {
		return path[:1024]
	}
	return path
}

// sameEndpoint reports whether the rules still tunnel to an endpoint without
// reading it.
func sameEndpoint(set *ruleset, scheme string, h names.Host, port uint16, intercept bool) bool {
	g, now, _ := set.tunnel(scheme, h, port)
	return g != nil && now == intercept
}
