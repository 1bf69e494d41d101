package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"sandboxd/netproxy/internal/control"
)

// ErrNotListening says that nothing listens on the port yet.
var ErrNotListening = errors.New("nothing listens on the port")

// previews serve published ports. The host's first label is the whole secret:
// who knows it may see the port, and nobody else can guess it.
type previews struct {
	base    string // authority after the label, lower case
	port    string // of base, "" for the scheme's own
	scheme  string // of the visitors' addresses
	backend Backend
	log     *slog.Logger
	server  *http.Server

	mu     sync.Mutex
	labels map[string]*preview
	tokens map[string]*preview
	past   map[string]struct{} // labels and tokens, answered with 410
	order  []string
}

// A preview is one published port.
type preview struct {
	control.Expose
	proxy  *httputil.ReverseProxy
	ctx    context.Context
	cancel context.CancelFunc
	timer  *time.Timer
}

// maxVisitors bounds the connections of all previews together.
const maxVisitors = 4096

// maxStreams bounds the requests at once on one HTTP/2 connection.
const maxStreams = 128

// TokenHeader carries a preview's token where the address cannot: for clients
// behind a proxy of the operator's that keeps one host name. No browser sends it
// to another site unasked.
const TokenHeader = "Sandboxd-Preview-Token"

// maxPast bounds how many ended labels are remembered as such.
const maxPast = 4096

func newPreviews(h *control.Hello, shown *certificate, backend Backend, log *slog.Logger) *previews {
	p := &previews{backend: backend, log: log, labels: map[string]*preview{}, tokens: map[string]*preview{}, past: map[string]struct{}{}}
	p.base, p.scheme = strings.ToLower(h.PreviewBase), "http"
	if h.PreviewHTTPS {
		p.scheme = "https"
	}
	if i := strings.LastIndexByte(p.base, ':'); i >= 0 && !strings.HasSuffix(p.base, "]") {
		p.base, p.port = p.base[:i], p.base[i+1:]
	}
	p.server = &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		TLSConfig: shown.config(), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	return p
}

func (p *previews) serve(l net.Listener) {
	l = netutil.LimitListener(l, maxVisitors)
	serve := p.server.Serve
	if p.server.TLSConfig != nil {
		serve = func(l net.Listener) error { return p.server.ServeTLS(l, "", "") }
	}
	if err := serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		p.log.Error("the preview listener ended")
	}
}

func (p *previews) expose(e control.Expose) {
	v := &preview{Expose: e}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.proxy = p.reverseProxy(v)
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.labels[e.Label]; old != nil {
		old.stop()
	}
	p.labels[e.Label] = v
	p.tokens[v.token()] = v
	v.timer = time.AfterFunc(time.Until(e.Expires), func() { p.unexpose(e.Label, v) })
}

// unexpose withdraws a label; only this preview of it, unless that is nil.
func (p *previews) unexpose(label string, only *preview) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.labels[label]
	if v == nil || only != nil && v != only {
		return
	}
	v.stop()
	delete(p.labels, label)
	delete(p.tokens, v.token())
	if len(p.order) >= maxPast {
		delete(p.past, p.order[0])
		delete(p.past, tokenIn(p.order[0]))
		p.order = p.order[1:]
	}
	p.past[label], p.past[v.token()] = struct{}{}, struct{}{}
	p.order = append(p.order, label)
}

func (p *previews) removeTenant(name string) {
	p.mu.Lock()
	var labels []string
	for label, v := range p.labels {
		if v.Tenant == name {
			labels = append(labels, label)
		}
	}
	p.mu.Unlock()
	for _, label := range labels {
		p.unexpose(label, nil)
	}
}

func (p *previews) close() {
	p.mu.Lock()
	for _, v := range p.labels {
		v.stop()
	}
	p.mu.Unlock()
	_ = p.server.Close()
}

func (v *preview) token() string { return tokenIn(v.Label) }

// tokenIn is the secret in a label.
func tokenIn(label string) string { return label[strings.LastIndexByte(label, '-')+1:] }

// stop cuts open connections, upgraded ones too.
func (v *preview) stop() {
	if v.timer != nil {
		v.timer.Stop()
	}
	v.cancel()
}

// of returns the preview that a request is for: by its Host, or by its token in a
// header. A request that names two is for none.
func (p *previews) of(r *http.Request) (*preview, int) {
	token := r.Header.Get(TokenHeader)
	if token == "" {
		return p.find(r.Host)
	}
	p.mu.Lock()
	v := p.tokens[token]
	_, was := p.past[token]
	p.mu.Unlock()
	switch {
	case len(r.Header.Values(TokenHeader)) > 1:
		return nil, http.StatusMisdirectedRequest
	case was || v != nil && time.Now().After(v.Expires):
		return nil, http.StatusGone
	case v == nil:
		return nil, http.StatusNotFound
	}
	if named, _ := p.find(r.Host); named != nil && named != v {
		return nil, http.StatusMisdirectedRequest
	}
	return v, 0
}

// find returns the preview that a Host names. status is 421 when the host is
// none of ours, 404 when the label is unknown, 410 when it has ended.
func (p *previews) find(host string) (*preview, int) {
	name, port := strings.ToLower(host), ""
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		name, port = name[:i], name[i+1:]
	}
	label, rest, ok := strings.Cut(strings.TrimSuffix(name, "."), ".")
	if !ok || rest != p.base || port != "" && p.port != "" && port != p.port {
		return nil, http.StatusMisdirectedRequest
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.labels[label]; v != nil && time.Now().Before(v.Expires) {
		return v, 0
	}
	if _, was := p.past[label]; was || p.labels[label] != nil {
		return nil, http.StatusGone
	}
	return nil, http.StatusNotFound
}

// ServeHTTP implements http.Handler.
func (p *previews) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v, status := p.of(r)
	if v == nil || r.URL.IsAbs() {
		if v != nil {
			status = http.StatusMisdirectedRequest
		}
		page(w, r, status)
		return
	}
	if upgrade := r.Header.Get("Upgrade"); upgrade != "" {
		if !strings.EqualFold(upgrade, "websocket") {
			r.Header.Del("Upgrade")
		} else if !sameOrigin(r) {
			page(w, r, http.StatusForbidden)
			return
		}
	}
	// What is published ends for connections, too, when it is withdrawn.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := context.AfterFunc(v.ctx, cancel)
	defer stop()
	v.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// sameOrigin keeps another site's script from opening a socket with the
// visitor's authority; a client that sends no Origin is no browser.
func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

func (p *previews) dial(ctx context.Context, label string) (net.Conn, error) {
	c, err := p.backend.DialJail(ctx, label)
	if err != nil {
		return nil, err
	}
	w := &watchedConn{Conn: c, active: func() { p.backend.Active(label) }}
	w.told.Store(time.Now().UnixNano()) // by the dial
	return w, nil
}

// activeEvery is how often the daemon is told at most. No jail is frozen sooner
// after it was.
const activeEvery = 500 * time.Millisecond

// A watchedConn tells that bytes pass.
type watchedConn struct {
	net.Conn
	active func()
	told   atomic.Int64
}

func (c *watchedConn) tell() {
	now, told := time.Now().UnixNano(), c.told.Load()
	if now-told >= int64(activeEvery) && c.told.CompareAndSwap(told, now) {
		c.active()
	}
}

func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.tell()
	}
	return n, err
}

func (c *watchedConn) Write(b []byte) (int, error) {
	c.tell()
	return c.Conn.Write(b)
}

func (p *previews) reverseProxy(v *preview) *httputil.ReverseProxy {
	inside := "localhost:" + strconv.Itoa(int(v.Port))
	return &httputil.ReverseProxy{
		Rewrite:        func(pr *httputil.ProxyRequest) { p.inbound(pr, inside) },
		ModifyResponse: func(resp *http.Response) error { outbound(resp); return nil },
		FlushInterval:  -1, // server-sent events
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return p.dial(ctx, v.Label)
			},
			// No connection into a jail serves a second request: what a hostile
			// server leaves in it must not be taken for an answer.
			DisableKeepAlives:      true,
			DisableCompression:     true,
			ResponseHeaderTimeout:  5 * time.Minute,
			MaxResponseHeaderBytes: 256 << 10,
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.Is(err, ErrNotListening) || errors.Is(err, unix.ECONNREFUSED) {
				waitingPage(w, r, v.Port)
				return
			}
			page(w, r, http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
}

// platformCookies begin the names of cookies that are the platform's, never a
// tenant's application's.
var platformCookies = []string{"sandboxd", "__Host-sandboxd", "__Secure-sandboxd"}

// inbound makes the request that the tenant's server sees: Host and Origin are
// the local ones for HTTP and upgrades alike, so that dev servers that check
// them agree; what could speak for the visitor towards the platform stays out.
func (p *previews) inbound(pr *httputil.ProxyRequest, inside string) {
	out := pr.Out
	out.URL.Scheme, out.URL.Host, out.Host = "http", inside, inside
	if origin := pr.In.Header.Get("Origin"); origin != "" {
		switch {
		case sameOrigin(pr.In):
			out.Header.Set("Origin", "http://"+inside)
		case p.ours(origin):
			// Another preview's address is that one's secret.
			out.Header.Set("Origin", "null")
		}
	}
	if ref, err := url.Parse(pr.In.Header.Get("Referer")); err == nil && ref.Host != "" {
		if strings.EqualFold(ref.Host, pr.In.Host) {
			ref.Scheme, ref.Host = "http", inside
			out.Header.Set("Referer", ref.String())
		} else {
			out.Header.Del("Referer")
		}
	}
	for name := range out.Header {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "x-forwarded-") || strings.HasPrefix(lower, "proxy-") || lower == "forwarded" || lower == "x-real-ip" {
			delete(out.Header, name)
		}
	}
	out.Header.Del(TokenHeader)
	out.Header.Set("X-Forwarded-Host", pr.In.Host)
	out.Header.Set("X-Forwarded-Proto", p.scheme)
	var keep []string
	for _, c := range pr.In.Cookies() {
		if !hasAnyPrefix(c.Name, platformCookies) {
			keep = append(keep, c.Name+"="+c.Value)
		}
	}
	out.Header.Del("Cookie")
	if len(keep) > 0 {
		out.Header.Set("Cookie", strings.Join(keep, "; "))
	}
}

// ours reports whether an Origin names a preview of this server.
func (p *previews) ours(origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && strings.HasSuffix(strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), "."+p.base)
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// outbound takes out what a tenant's server could do to other origins of the
// same base, and keeps the address, which is the secret, out of Referer fields.
func outbound(resp *http.Response) {
	for _, name := range []string{
		"Strict-Transport-Security", "Public-Key-Pins", "Clear-Site-Data", "Alt-Svc", "Service-Worker-Allowed", RefusedHeader,
	} {
		resp.Header.Del(name)
	}
	cookies := resp.Header.Values("Set-Cookie")
	resp.Header.Del("Set-Cookie")
	for _, c := range cookies {
		if c = hostOnly(c); c != "" {
			resp.Header.Add("Set-Cookie", c)
		}
	}
	resp.Header.Set("Referrer-Policy", "no-referrer")
	resp.Header.Set("X-Robots-Tag", "noindex")
}

// hostOnly removes the Domain attribute, by which a cookie would go to other
// tenants' origins; cookies with the platform's names are dropped.
func hostOnly(cookie string) string {
	parts := strings.Split(cookie, ";")
	name := strings.TrimSpace(parts[0])
	if hasAnyPrefix(name, platformCookies) {
		return ""
	}
	keep := parts[:1]
	for _, part := range parts[1:] {
		key, _, _ := strings.Cut(part, "=")
		if !strings.EqualFold(strings.TrimSpace(key), "domain") {
			keep = append(keep, part)
		}
	}
	return strings.Join(keep, ";")
}
