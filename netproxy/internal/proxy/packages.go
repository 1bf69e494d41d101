package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandboxd/netproxy/internal/pkgcache"
)

// A PackageStore keeps what registries answered. It is the daemon's: this
// process has no file of its own.
type PackageStore interface {
	Find(ctx context.Context, key string) (pkgcache.Meta, *os.File, error)
	Begin(ctx context.Context) (id uint64, f *os.File, err error)
	Commit(ctx context.Context, id uint64, key string, m pkgcache.Meta) error
	Abort(id uint64)
	Refresh(ctx context.Context, key, sha string, fresh time.Time) error
}

// How an answer of a rule with a package cache came about, for the record.
const (
	cacheHit         = "hit"         // kept, nothing was sent
	cacheRevalidated = "revalidated" // kept, the registry says that it is the same
	cacheMiss        = "miss"        // from the registry, and kept now
	cachePassed      = "passed"      // from the registry, and not to be kept
)

const (
	// maxKept bounds one answer that is kept, in bytes.
	maxKept = 512 << 20
	// maxFresh bounds how long a document that changes is used unasked, whatever
	// its server says.
	maxFresh = 10 * time.Minute
	// forever is how long a file is used that never changes under its address.
	forever = 365 * 24 * time.Hour
	// maxNegotiated bounds the one field of a request that chooses an answer.
	maxNegotiated = 512
)

// packages answers from what is kept. What is asked of the registry holds
// nothing of a tenant's but the address and the accepted types, which are part
// of the key, so one tenant cannot choose what another is given.
type packages struct {
	store PackageStore

	mu        sync.Mutex
	documents map[string]string             // guarded by mu: keys, by npm package
	read      map[string]map[string]npmDist // guarded by mu: what documents say, by their SHA-256

	reading chan struct{} // held while a document is read
}

func newPackages(store PackageStore) *packages {
	return &packages{store: store, documents: map[string]string{}, read: map[string]map[string]npmDist{}, reading: make(chan struct{}, 1)}
}

// A packageRequest is one that may be answered from what is kept.
type packageRequest struct {
	p      *packages
	out    *http.Request // the proxy's own
	origin string        // who is asked
	key    string
	match  string // the client's If-None-Match

	meta pkgcache.Meta
	file *os.File // what is kept; nil: nothing is
}

// request returns nil if the client's request is none that is kept.
func (p *packages) request(client *http.Request, g *rule) *packageRequest {
	h := client.Header
	if p == nil || client.Method != http.MethodGet || client.ContentLength != 0 || client.URL.Scheme != "https" {
		return nil
	}
	for _, name := range []string{"Authorization", "Cookie", "Range", "If-Range", "Npm-Otp"} {
		if h.Get(name) != "" {
			return nil
		}
	}
	accept := strings.Join(h.Values("Accept"), ", ")
	if len(accept) > maxNegotiated {
		return nil
	}
	coding := "identity"
	if acceptsGzip(strings.Join(h.Values("Accept-Encoding"), ",")) {
		coding = "gzip"
	}
	out := client.Clone(client.Context())
	out.Header = http.Header{"Accept-Encoding": {coding}, "User-Agent": {"sandboxd"}}
	if accept != "" {
		out.Header["Accept"] = []string{accept}
	}
	// Where a rule says who the host is, that is part of the name, too.
	origin := client.URL.Host + fmt.Sprint(g.Resolve, g.Addresses)
	return &packageRequest{p: p, out: out, origin: origin, match: h.Get("If-None-Match"),
		key: pkgcache.Key(origin, client.URL.Opaque, client.URL.RawQuery, accept, coding)}
}

func acceptsGzip(accepted string) bool {
	for part := range strings.SplitSeq(accepted, ",") {
		name, params, _ := strings.Cut(part, ";")
		if name = strings.TrimSpace(strings.ToLower(name)); name == "gzip" || name == "*" {
			return !strings.HasPrefix(strings.ReplaceAll(params, " ", ""), "q=0")
		}
	}
	return false
}

// find looks for what is kept; close lets go of it.
func (r *packageRequest) find(ctx context.Context) {
	meta, f, err := r.p.store.Find(ctx, r.key)
	if err == nil {
		r.meta, r.file = meta, f
	}
}

// fresh reports whether nothing need be asked of the registry.
func (r *packageRequest) fresh() bool {
	return r != nil && r.file != nil && time.Now().Before(r.meta.Fresh)
}

func (r *packageRequest) close() {
	if r != nil && r.file != nil {
		r.file.Close()
	}
}

// answer returns the kept answer or fetches one, and how that was. The answer's
// body is of use until close.
func (r *packageRequest) answer(fetch func(*http.Request) (*http.Response, error)) (*http.Response, string, error) {
	if r.fresh() {
		return r.kept(), cacheHit, nil
	}
	if tag := r.meta.Header["Etag"]; r.file != nil && tag != "" {
		r.out.Header["If-None-Match"] = []string{tag}
	}
	resp, err := fetch(r.out)
	if err != nil {
		return nil, cachePassed, err
	}
	if r.file == nil || resp.StatusCode != http.StatusNotModified {
		return r.keep(resp)
	}
	resp.Body.Close()
	if fresh := freshness(r.out, resp); fresh > 0 {
		// Only that it is asked for again sooner if this fails.
		_ = r.p.store.Refresh(r.out.Context(), r.key, r.meta.SHA256, time.Now().Add(fresh))
	}
	return r.kept(), cacheRevalidated, nil
}

// kept makes an answer of what is kept.
func (r *packageRequest) kept() *http.Response {
	meta := r.meta
	resp := &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r.out,
		Header: http.Header{}, ContentLength: meta.Size,
	}
	for name, value := range meta.Header {
		resp.Header[name] = []string{value}
	}
	if tag := meta.Header["Etag"]; tag != "" && tag == r.match {
		resp.StatusCode, resp.ContentLength, resp.Body = http.StatusNotModified, 0, http.NoBody
		return resp
	}
	resp.Body = &checked{src: r.file, left: meta.Size, sum: sha256.New(), want: meta.SHA256}
	return resp
}

// errChanged says that what is kept is not what was kept: the transfer breaks
// off before its last byte.
var errChanged = errors.New("a kept package has changed on disk")

// checked reads what is kept and gives out its last bytes only if all of it is
// what its hash says.
type checked struct {
	src  io.Reader
	left int64
	sum  hash.Hash
	want string
}

func (c *checked) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n, err := c.src.Read(p[:min(int64(len(p)), c.left)])
	c.sum.Write(p[:n])
	if c.left -= int64(n); c.left == 0 && hex.EncodeToString(c.sum.Sum(nil)) != c.want {
		c.left = 1 // and nothing more
		return 0, errChanged
	}
	if err == io.EOF && c.left > 0 {
		return n, errChanged
	}
	return n, err
}

func (c *checked) Close() error { return nil }

// keptHeader are the fields that are kept with an answer.
var keptHeader = []string{"Content-Type", "Content-Encoding", "Etag", "Last-Modified", "Cache-Control"}

// keep passes an answer on and keeps it, if it may.
func (r *packageRequest) keep(resp *http.Response) (*http.Response, string, error) {
	fresh := freshness(r.out, resp)
	if resp.StatusCode != http.StatusOK || fresh <= 0 || resp.ContentLength > maxKept {
		return resp, cachePassed, nil
	}
	id, f, err := r.p.store.Begin(r.out.Context())
	if err != nil {
		return resp, cachePassed, nil // nothing to keep it in: it passes as without
	}
	meta := pkgcache.Meta{URL: address(r.out), Header: map[string]string{}, Fresh: time.Now().Add(fresh)}
	for _, name := range keptHeader {
		if v := resp.Header.Get(name); v != "" && len(v) < 1024 {
			meta.Header[name] = v
		}
	}
	resp.Body = &keeping{r: r, src: resp.Body, id: id, f: f, meta: meta, sum: sha256.New(), published: r.p.publishedHash(r.out.Context(), r), length: resp.ContentLength}
	return resp, cacheMiss, nil
}

func address(r *http.Request) string {
	u := "https://" + r.URL.Host + r.URL.Opaque
	if r.URL.RawQuery != "" {
		u += "?" + r.URL.RawQuery
	}
	return u
}

// keeping writes an answer to a file while it is passed on.
type keeping struct {
	r         *packageRequest
	src       io.ReadCloser
	id        uint64
	f         *os.File // nil: given up, or done
	meta      pkgcache.Meta
	sum       hash.Hash
	published *published // nil: none is known
	length    int64      // -1: unknown
}

// errPublished says that a file is not what its registry says of it elsewhere.
var errPublished = errors.New("the package does not have the hash that is published for it")

func (k *keeping) Read(p []byte) (int, error) {
	n, err := k.src.Read(p)
	k.take(p[:n])
	if whole := err == io.EOF || k.length >= 0 && k.meta.Size == k.length; whole {
		if k.published != nil && !k.published.holds() {
			k.giveUp()
			return 0, errPublished
		}
		k.commit()
	} else if err != nil {
		k.giveUp()
	}
	return n, err
}

// take counts and writes a piece; what cannot be kept is passed on all the same.
func (k *keeping) take(p []byte) {
	k.meta.Size += int64(len(p))
	k.sum.Write(p)
	if k.published != nil {
		k.published.sum.Write(p)
	}
	if k.f == nil || len(p) == 0 {
		return
	}
	if _, err := k.f.Write(p); err != nil || k.meta.Size > maxKept {
		k.giveUp()
	}
}

func (k *keeping) commit() {
	if k.f == nil {
		return
	}
	k.f.Close()
	k.f = nil
	k.meta.SHA256 = hex.EncodeToString(k.sum.Sum(nil))
	if k.published != nil {
		k.meta.Held = k.published.name
	}
	// Without it the next one fetches it again.
	if k.r.p.store.Commit(k.r.out.Context(), k.id, k.r.key, k.meta) == nil {
		k.r.p.document(k.r, k.meta.Header["Content-Type"])
	}
}

func (k *keeping) giveUp() {
	if k.f == nil {
		return
	}
	k.f.Close()
	k.f = nil
	k.r.p.store.Abort(k.id)
}

func (k *keeping) Close() error {
	k.giveUp()
	return k.src.Close()
}

// freshness is how long an answer may be used unasked; 0: it is not kept.
func freshness(r *http.Request, resp *http.Response) time.Duration {
	h := resp.Header
	if len(h.Values("Set-Cookie")) > 0 {
		return 0
	}
	for _, field := range h.Values("Vary") {
		for name := range strings.SplitSeq(field, ",") {
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "", "accept", "accept-encoding":
			case "origin", "authorization": // never sent
			default:
				return 0
			}
		}
	}
	age, always := time.Duration(0), immutable(r.URL.Opaque)
	for _, field := range h.Values("Cache-Control") {
		for part := range strings.SplitSeq(field, ",") {
			name, value, _ := strings.Cut(strings.ToLower(strings.TrimSpace(part)), "=")
			switch name {
			case "no-store", "private": // of files that never change, too: not for everybody
				return 0
			case "no-cache":
				if !always {
					return 0
				}
			case "max-age":
				seconds, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 31)
				if err != nil && !always {
					return 0
				}
				age = min(time.Duration(seconds)*time.Second, maxFresh)
			}
		}
	}
	if always {
		return forever
	}
	return age
}

// immutable says that a registry never gives anything else under the address:
// npm's archives, Python's files below their hash, Go's versions.
func immutable(path string) bool {
	name := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case strings.Contains(path, "/-/") && strings.HasSuffix(name, ".tgz"):
		return true
	case hashInPath.MatchString(strings.TrimSuffix(path, ".metadata")):
		return true
	case strings.Contains(path, "/@v/v"):
		return strings.HasSuffix(name, ".zip") || strings.HasSuffix(name, ".mod") || strings.HasSuffix(name, ".info")
	}
	return false
}
