package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/blake2b"
	"golang.org/x/sys/unix"

	"sandboxd/netproxy/internal/pkgcache"
)

// localStore is a store in this process.
type localStore struct{ *pkgcache.Store }

func (s localStore) Find(_ context.Context, key string) (pkgcache.Meta, *os.File, error) {
	return s.Store.Find(key)
}

// Begin gives out a descriptor of its own, as the control socket does.
func (s localStore) Begin(context.Context) (uint64, *os.File, error) {
	id, f, err := s.Store.Begin()
	if err != nil {
		return 0, nil, err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	return id, os.NewFile(uintptr(fd), f.Name()), err
}

func (s localStore) Commit(_ context.Context, id uint64, key string, m pkgcache.Meta) error {
	return s.Store.Commit(id, key, m)
}
func (s localStore) Abort(id uint64) { _ = s.Store.Abort(id) }
func (s localStore) Refresh(_ context.Context, key, sha string, fresh time.Time) error {
	return s.Store.Refresh(key, sha, fresh)
}

// A mirror is a registry, what is kept of it, and what it was asked.
type mirror struct {
	testing.TB
	server   *httptest.Server
	packages *packages
	dir      string
	asked    atomic.Int64
	last     atomic.Pointer[http.Request]
}

func newMirror(t testing.TB, h http.HandlerFunc) *mirror {
	m := &mirror{TB: t, dir: t.TempDir()}
	m.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.asked.Add(1)
		m.last.Store(r)
		h(w, r)
	}))
	t.Cleanup(m.server.Close)
	store, err := pkgcache.Open(m.dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	m.packages = newPackages(localStore{store})
	return m
}

// get asks as the proxy does; the answer is "" with an error if it broke off.
func (m *mirror) get(path string, header ...string) (resp *http.Response, body, how string, err error) {
	m.Helper()
	u, err := url.Parse(m.server.URL)
	if err != nil {
		m.Fatal(err)
	}
	u.Opaque = path
	req := (&http.Request{Method: "GET", URL: u, Host: u.Host, Header: http.Header{}, Body: http.NoBody}).WithContext(m.Context())
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	tr, ok := m.server.Client().Transport.(*http.Transport)
	if !ok {
		m.Fatal("no transport")
	}
	tr.DisableCompression = true
	how = "not for it"
	if r := m.packages.request(req, &rule{}); r != nil {
		r.find(m.Context())
		defer r.close()
		resp, how, err = r.answer(tr.RoundTrip)
	} else {
		resp, err = tr.RoundTrip(req)
	}
	if err != nil {
		return resp, "", how, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp, "", how, err
	}
	return resp, string(b), how, nil
}

func (m *mirror) want(how, body, path string, header ...string) *http.Response {
	m.Helper()
	resp, got, was, err := m.get(path, header...)
	if err != nil || was != how || got != body {
		m.Fatalf("%s: %q, %s, %v; want %q, %s", path, got, was, err, body, how)
	}
	return resp
}

func TestPackagesAreKept(t *testing.T) {
	m := newMirror(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("X-Other", "not kept")
		fmt.Fprint(w, "archive of "+r.URL.Path)
	})
	m.want(cacheMiss, "archive of /left-pad/-/left-pad-1.0.0.tgz", "/left-pad/-/left-pad-1.0.0.tgz", "X-Tenant", "alice", "User-Agent", "npm/alice")
	if h := m.last.Load().Header; h.Get("X-Tenant") != "" || strings.Contains(h.Get("User-Agent"), "alice") {
		t.Errorf("the registry was sent %v", h)
	}
	resp := m.want(cacheHit, "archive of /left-pad/-/left-pad-1.0.0.tgz", "/left-pad/-/left-pad-1.0.0.tgz", "User-Agent", "npm/bob")
	if m.asked.Load() != 1 || resp.Header.Get("Content-Type") != "application/octet-stream" || resp.Header.Get("X-Other") != "" {
		t.Errorf("asked %d times; %v", m.asked.Load(), resp.Header)
	}
	m.want(cacheMiss, "archive of /left-pad/-/left-pad-1.0.1.tgz", "/left-pad/-/left-pad-1.0.1.tgz")
	for _, field := range []string{"Authorization", "Cookie", "Range", "Npm-Otp"} {
		before := m.asked.Load()
		m.want("not for it", "archive of /left-pad/-/left-pad-1.0.0.tgz", "/left-pad/-/left-pad-1.0.0.tgz", field, "x")
		if m.asked.Load() != before+1 {
			t.Errorf("a request with %s was answered from what is kept", field)
		}
	}
}

func TestPackagesAskAgain(t *testing.T) {
	tag := `"1"`
	m := newMirror(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", tag)
		w.Header().Set("Cache-Control", "public, max-age=1")
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, "document "+tag)
	})
	stale := func() {
		// As time would.
		key := m.packages.request((&http.Request{Method: "GET", URL: &url.URL{Scheme: "https", Host: strings.TrimPrefix(m.server.URL, "https://"), Opaque: "/a"}}).WithContext(t.Context()), &rule{}).key
		meta, f, err := m.packages.store.Find(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := m.packages.store.Refresh(t.Context(), key, meta.SHA256, time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	m.want(cacheMiss, `document "1"`, "/a")
	m.want(cacheHit, `document "1"`, "/a")
	stale()
	m.want(cacheRevalidated, `document "1"`, "/a")
	m.want(cacheHit, `document "1"`, "/a")
	if resp := m.want(cacheHit, "", "/a", "If-None-Match", `"1"`); resp.StatusCode != http.StatusNotModified {
		t.Errorf("the client has it: %s", resp.Status)
	}
	stale()
	tag = `"2"`
	m.want(cacheMiss, `document "2"`, "/a")
	m.want(cacheHit, `document "2"`, "/a")
	// Another form of it is another answer.
	m.want(cacheMiss, `document "2"`, "/a", "Accept", "application/vnd.npm.install-v1+json")
}

func TestPackagesThatMayNotBeKept(t *testing.T) {
	for name, tc := range map[string]struct {
		status        int
		field, value  string
		path          string
		breaks, short bool
	}{
		"a cookie":           {200, "Set-Cookie", "a=b", "/p/-/p-1.tgz", false, false},
		"private":            {200, "Cache-Control", "private, max-age=60", "/p", false, false},
		"private archive":    {200, "Cache-Control", "private, max-age=60", "/p/-/p-1.tgz", false, false},
		"secret archive":     {200, "Cache-Control", "no-store", "/p/-/p-1.tgz", false, false},
		"not to be stored":   {200, "Cache-Control", "max-age=60, no-store", "/p", false, false},
		"of unknown age":     {200, "", "", "/p", false, false},
		"by another field":   {200, "Vary", "Accept, User-Agent", "/p/-/p-1.tgz", false, false},
		"by everything":      {200, "Vary", "*", "/p/-/p-1.tgz", false, false},
		"an error":           {404, "Cache-Control", "max-age=60", "/p/-/p-1.tgz", false, false},
		"a redirect":         {302, "Location", "/elsewhere", "/p/-/p-1.tgz", false, false},
		"cut off":            {200, "", "", "/p/-/p-1.tgz", true, true},
		"an age that is odd": {200, "Cache-Control", "max-age=99999999999999999999", "/p", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t, func(w http.ResponseWriter, r *http.Request) {
				if tc.field != "" {
					w.Header().Set(tc.field, tc.value)
				}
				if tc.short {
					w.Header().Set("Content-Length", "100")
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, "text")
			})
			for range 2 {
				if _, _, how, err := m.get(tc.path); how == cacheHit || (err != nil) != tc.breaks {
					t.Errorf("%s, %v", how, err)
				}
			}
			if m.asked.Load() != 2 {
				t.Errorf("asked %d times", m.asked.Load())
			}
			if left, err := os.ReadDir(filepath.Join(m.dir, "new")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
		})
	}
}

// What is on disk has changed: nobody gets all of it.
func TestPackageChangedOnDisk(t *testing.T) {
	m := newMirror(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("a"), 100_000)) })
	if _, _, how, err := m.get("/p/-/p-1.tgz"); how != cacheMiss || err != nil {
		t.Fatal(how, err)
	}
	files, err := filepath.Glob(filepath.Join(m.dir, "content", "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("b"), 50_000); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, _, how, err := m.get("/p/-/p-1.tgz"); how != cacheHit || !errors.Is(err, errChanged) {
		t.Errorf("%s, %v", how, err)
	}
}

// A file is held against the hash that is published for it, before its last
// byte is passed on.
func TestPublishedHashes(t *testing.T) {
	good, bad := "the archive", "another one"
	sum := sha512.Sum512([]byte(good))
	document := fmt.Sprintf(`{"versions": {"1.0.0": {"dist": {"tarball": "https://registry.test/@a/b/-/b-1.0.0.tgz", "integrity": "sha1-xx sha512-%s"}}}}`,
		base64.StdEncoding.EncodeToString(sum[:]))
	blake := blake2b.Sum256([]byte(good))
	digits := hex.EncodeToString(blake[:])
	wheel := "/packages/" + digits[:2] + "/" + digits[2:4] + "/" + digits[4:] + "/x-1.0-py3-none-any.whl"
	for name, tc := range map[string]struct{ path, served string }{
		"npm":          {"/@a/b/-/b-1.0.0.tgz", good},
		"npm, wrong":   {"/@a/b/-/b-1.0.0.tgz", bad},
		"wheel":        {wheel, good},
		"wheel, wrong": {wheel, bad},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.RequestURI, "%2fb") {
					w.Header().Set("Content-Type", "application/json")
					w.Header().Set("Cache-Control", "max-age=300")
					_, _ = io.WriteString(w, document)
					return
				}
				_, _ = io.WriteString(w, tc.served)
			})
			m.want(cacheMiss, document, "/@a%2fb")
			for i, how := range []string{cacheMiss, cacheHit} {
				_, body, was, err := m.get(tc.path)
				if tc.served == bad {
					if !errors.Is(err, errPublished) || was != cacheMiss {
						t.Errorf("%d: %q, %s, %v", i, body, was, err)
					}
				} else if body != good || was != how || err != nil {
					t.Errorf("%d: %q, %s, %v", i, body, was, err)
				}
			}
		})
	}
	// What stands beside a wheel has another hash.
	m := newMirror(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "Name: x") })
	m.want(cacheMiss, "Name: x", wheel+".metadata")
	m.want(cacheHit, "Name: x", wheel+".metadata")
}

// A large document that many ask for at once, for the hashes of its many
// archives, is read once: what that takes in memory does not grow with them.
func TestLargeDocumentIsReadOnce(t *testing.T) {
	store, err := pkgcache.Open(t.TempDir(), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	p := newPackages(localStore{store})
	document := []byte(`{"readme": "` + strings.Repeat("x", 8<<20) + `", "versions": {`)
	const versions = 200
	for i := range versions {
		document = fmt.Appendf(document, `"1.0.%d": {"dist": {"tarball": "https://r.test/b/-/b-1.0.%d.tgz", "shasum": "%040x"}},`, i, i, i)
	}
	document = append(document[:len(document)-1], "}}"...)
	id, f, err := store.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(document); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(document)
	if err := store.Commit(id, pkgcache.Key("k"), pkgcache.Meta{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(document))}); err != nil {
		t.Fatal(err)
	}
	p.documents["r.test/b"] = pkgcache.Key("k")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var all sync.WaitGroup
	for i := range versions {
		all.Go(func() {
			h := p.npmHash(t.Context(), "r.test/b", fmt.Sprintf("b-1.0.%d.tgz", i))
			if h == nil || hex.EncodeToString(h.want) != fmt.Sprintf("%040x", i) {
				t.Errorf("version %d: %+v", i, h)
			}
		})
	}
	all.Wait()
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 8*uint64(len(document)) {
		t.Errorf("%d bytes for a document of %d", took, len(document))
	}
	if h := p.npmHash(t.Context(), "r.test/b", "c-1.0.0.tgz"); h != nil {
		t.Errorf("of another package: %+v", h)
	}
}

func FuzzNpmPublished(f *testing.F) {
	f.Add("sha512-"+strings.Repeat("A", 86)+"==", "")
	f.Add("sha1-xx", strings.Repeat("0", 40))
	f.Fuzz(func(t *testing.T, integrity, shasum string) {
		if p := npmPublished(integrity, shasum); p != nil && len(p.want) != p.sum.Size() {
			t.Errorf("%s of %d bytes", p.name, len(p.want))
		}
	})
}
