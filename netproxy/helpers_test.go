package netproxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/policy"
)

const (
	testUID = 0x38000001
	secret  = "s3cr3t-Token/0123+x="
)

// The test binary is the proxy process when it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "role" && os.Args[2] == "netproxy" {
		Main()
	}
	os.Exit(m.Run())
}

// A world is a running proxy, an authority that it trusts as a root, and what
// it put on record.
type world struct {
	testing.TB
	p    *Proxy
	root *x509.Certificate
	key  *ecdsa.PrivateKey
	logs *bytes.Buffer

	mu        sync.Mutex
	decisions []Decision
	failAudit bool
	granted   []policy.Rule
	jailPorts map[string]string // tenant → address to dial
}

func newWorld(t testing.TB, edit func(*Config)) *world {
	t.Helper()
	w := &world{TB: t, jailPorts: map[string]string{}, logs: &bytes.Buffer{}}
	w.makeRoot()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	roots := write("roots.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.root.Raw})))
	t.Setenv("SSL_CERT_FILE", roots)
	t.Setenv("SSL_CERT_DIR", "")
	token, err := os.Open(write("token", secret+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	preview, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		UID: testUID, GID: testUID, Credentials: map[string]*os.File{"api-token": token},
		Preview: preview, PreviewBase: fmt.Sprintf("localhost:%d", preview.Addr().(*net.TCPAddr).Port),
		OnDecisions: w.record, DialJail: w.dialJail,
		Log: slog.New(slog.NewTextHandler(&lockedWriter{w: w.logs}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if edit != nil {
		edit(&cfg)
	}
	if w.p, err = Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (w *world) record(_ context.Context, list []Decision) []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failAudit {
		errs := make([]error, len(list))
		for i := range errs {
			errs[i] = errors.New("disk full")
		}
		return errs
	}
	w.decisions = append(w.decisions, list...)
	return nil
}

// find returns the records that match, waiting for those that come by
// themselves.
func (w *world) find(match func(Decision) bool) Decision {
	w.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		w.mu.Lock()
		for _, d := range w.decisions {
			if match(d) {
				w.mu.Unlock()
				return d
			}
		}
		all := fmt.Sprintf("%+v", w.decisions)
		w.mu.Unlock()
		if time.Now().After(deadline) {
			w.Fatalf("no such decision among %s", all)
		}
		time.Sleep(time.Millisecond)
	}
}

func (w *world) dialJail(_ context.Context, tenant string, _ uint16) (*os.File, error) {
	w.mu.Lock()
	addr := w.jailPorts[tenant]
	w.mu.Unlock()
	if addr == "" {
		return nil, unix.ECONNREFUSED
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.(*net.TCPConn).File()
}

func (w *world) makeRoot() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		w.Fatal(err)
	}
	w.key = key
	if w.root, err = x509.ParseCertificate(der); err != nil {
		w.Fatal(err)
	}
}

// cert makes a server certificate, signed by the root unless edit changes it.
func (w *world) cert(name string, edit func(*x509.Certificate)) tls.Certificate {
	w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if edit != nil {
		edit(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, w.root, &key.PublicKey, w.key)
	if err != nil {
		w.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// An upstream is a server that a rule can grant under its name.
type upstream struct {
	name string
	port uint16
	srv  *httptest.Server

	mu   sync.Mutex
	seen []*http.Request
}

func (w *world) upstream(name string, h http.HandlerFunc) *upstream {
	w.Helper()
	return w.upstreamTLS(name, h, &tls.Config{Certificates: []tls.Certificate{w.cert(name, nil)}})
}

func (w *world) upstreamTLS(name string, h http.HandlerFunc, cfg *tls.Config) *upstream {
	u := w.newUpstream(name, h)
	u.srv.TLS = cfg
	u.srv.StartTLS()
	u.finish(w)
	return u
}

func (w *world) plainUpstream(name string, h http.HandlerFunc) *upstream {
	u := w.newUpstream(name, h)
	u.srv.Start()
	u.finish(w)
	return u
}

func (w *world) newUpstream(name string, h http.HandlerFunc) *upstream {
	u := &upstream{name: name}
	u.srv = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.seen = append(u.seen, r)
		u.mu.Unlock()
		h(rw, r)
	}))
	u.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return u
}

func (u *upstream) finish(w *world) {
	u.port = uint16(u.srv.Listener.Addr().(*net.TCPAddr).Port)
	w.Cleanup(u.srv.Close)
}

func (u *upstream) requests() []*http.Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen
}

func (u *upstream) url(path string) string {
	return fmt.Sprintf("https://%s:%d%s", u.name, u.port, path)
}

// rule grants the upstream.
func (u *upstream) rule(edit func(*policy.Rule)) policy.Rule {
	r := policy.Rule{ID: "t/" + u.name, Host: u.name, Ports: []uint16{u.port}, Resolve: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	if edit != nil {
		edit(&r)
	}
	return r
}

var bearer = &policy.Injection{Name: "api-token", As: "bearer"}

// A jail is a client that lives in an attached namespace.
type jail struct {
	*world
	link *Link
}

func (w *world) jail(tenant string, rules ...policy.Rule) *jail {
	w.Helper()
	w.rules(tenant, rules...)
	l, err := w.p.Attach(w.Context(), tenant)
	if err != nil {
		w.Fatal(err)
	}
	return &jail{world: w, link: l}
}

func (w *world) rules(tenant string, rules ...policy.Rule) {
	w.Helper()
	if err := w.p.SetRules(w.Context(), tenant, rules, policy.EgressLimits{}); err != nil {
		w.Fatal(err)
	}
}

// within runs f on a thread in the jail's namespace, which ends with it.
func (j *jail) within(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(j.link.NetNS.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

func (j *jail) dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = j.within(func() error {
		d := net.Dialer{Timeout: 3 * time.Second}
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

func (j *jail) proxyAddr() string { return net.JoinHostPort(j.link.Gateway.String(), "3128") }

// conn is a raw connection to the jail's proxy.
func (j *jail) conn() net.Conn {
	j.Helper()
	c, err := j.dial(j.Context(), "tcp", j.proxyAddr())
	if err != nil {
		j.Fatal(err)
	}
	j.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		j.Fatal(err)
	}
	return c
}

func (j *jail) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(j.root)
	if !pool.AppendCertsFromPEM(j.link.CA) {
		j.Fatal("the link has no certificate")
	}
	return pool
}

// client uses the proxy as tools with HTTPS_PROXY do.
func (j *jail) client() *http.Client {
	proxy := &url.URL{Scheme: "http", Host: j.proxyAddr()}
	t := &http.Transport{
		DialContext: j.dial, Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: j.roots()},
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
			if resp.StatusCode == 200 {
				return nil
			}
			b, err := io.ReadAll(resp.Body)
			return errors.Join(&connectRefused{resp.StatusCode, string(b)}, err)
		},
	}
	j.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type connectRefused struct {
	status int
	body   string
}

func (e *connectRefused) Error() string { return fmt.Sprintf("%d %s", e.status, e.body) }

// run runs a program in the jail's network namespace.
func (j *jail) run(env []string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(j.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	bundle := filepath.Join(j.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: j.root.Raw}), j.link.CA...), 0o644); err != nil {
		j.Fatal(err)
	}
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + j.TempDir(), "CURL_CA_BUNDLE=" + bundle, "SSL_CERT_FILE=" + bundle, "GIT_SSL_CAINFO=" + bundle, "NODE_EXTRA_CA_CERTS=" + bundle}, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := j.within(func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		return cmd.Wait()
	})
	return out.String(), err
}

func (j *jail) proxyEnv() []string {
	var env []string
	for k, v := range j.link.Env {
		env = append(env, k+"="+v)
	}
	return env
}

func readAll(t testing.TB, resp *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func contains(err error, s string) bool { return strings.Contains(err.Error(), s) }

func hasSecret(s string) bool { return strings.Contains(s, secret) }
