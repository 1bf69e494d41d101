package netproxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A shownPair is the operator's certificate in its files.
type shownPair struct{ chain, key string }

func newShownPair(t *testing.T) *shownPair {
	dir := t.TempDir()
	return &shownPair{filepath.Join(dir, "chain.pem"), filepath.Join(dir, "key.pem")}
}

// write makes a new certificate with that serial number.
func (s *shownPair) write(w *world, serial int64) {
	w.Helper()
	pair := w.cert("", func(c *x509.Certificate) {
		c.SerialNumber, c.DNSNames = big.NewInt(serial), []string{"*.preview.test", "preview.test"}
	})
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		w.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	err = errors.Join(os.WriteFile(s.chain, chain, 0o600), os.WriteFile(s.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	if err != nil {
		w.Fatal(err)
	}
}

func (s *shownPair) open() (chain, key *os.File, err error) {
	if chain, err = os.Open(s.chain); err != nil {
		return nil, nil, err
	}
	key, err = os.Open(s.key)
	return chain, key, err
}

// newTLSWorld has a preview listener with a certificate of its own.
func newTLSWorld(t *testing.T) (*world, *shownPair) {
	t.Helper()
	s := newShownPair(t)
	maker := &world{TB: t}
	maker.makeRoot()
	s.write(maker, 100)
	w := newWorld(t, func(c *Config) {
		c.PreviewBase, c.PreviewHTTPS, c.PreviewTLS = "preview.test", true, s.open
	})
	w.root, w.key = maker.root, maker.key
	return w, s
}

// visitor is an HTTP client that finds every name at the preview listener.
func (w *world) visitor(http2 bool) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(w.root)
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: &http.Protocols{},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", w.p.cfg.Preview.Addr().String())
		},
	}
	tr.Protocols.SetHTTP2(http2)
	tr.Protocols.SetHTTP1(!http2)
	w.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

func TestPreviewOverTLS(t *testing.T) {
	w, shown := newTLSWorld(t)
	w.app("bob", func(rw http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		fmt.Fprintf(rw, "%s %s %s %d %x %v", r.Proto, r.Host, r.Header.Get("X-Forwarded-Proto"), n, sum.Sum(nil), err)
	})
	v := w.expose("bob", 3000, time.Hour)
	if !strings.HasPrefix(v.URL, "https://p3000-") || !strings.HasSuffix(v.URL, ".preview.test/") {
		t.Fatalf("URL %s", v.URL)
	}
	// An upload that is larger than anything would keep of it.
	const size = 96 << 20
	sum := sha256.New()
	if _, err := io.CopyN(sum, pattern{}, size); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("HTTP/1.1 localhost:3000 https %d %s <nil>", size, hex.EncodeToString(sum.Sum(nil)))
	for _, http2 := range []bool{false, true} {
		resp, err := w.visitor(http2).Post(v.URL, "application/octet-stream", io.LimitReader(pattern{}, size))
		if body := readAll(t, resp, err); body != want {
			t.Errorf("HTTP/2 %t: the server saw %q, want %q", http2, body, want)
		}
		if got := resp.ProtoMajor == 2; got != http2 {
			t.Errorf("asked for HTTP/2 %t, got %s", http2, resp.Proto)
		}
	}
	if kib := residentKiB(t, w.p.child.cmd.Process.Pid); kib > 96<<10 {
		t.Errorf("after the uploads the proxy holds %d KiB", kib)
	}

	serial := func() int64 {
		resp, err := w.visitor(true).Get(v.URL)
		readAll(t, resp, err)
		return resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 100 {
		t.Errorf("certificate %d", got)
	}
	shown.write(w, 101)
	if err := w.p.RenewPreviewTLS(t.Context()); err != nil || serial() != 101 {
		t.Errorf("renewed: %v, certificate %d", err, serial())
	}
	if err := os.WriteFile(shown.key, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.p.RenewPreviewTLS(t.Context()); err == nil || strings.Contains(err.Error(), "nonsense") || serial() != 101 {
		t.Errorf("a broken key: %v, certificate %d", err, serial())
	}
}

func TestPreviewTokenInHeader(t *testing.T) {
	w := newWorld(t, nil)
	w.app("bob", func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "host=%s token=%s", r.Host, r.Header.Get("Sandboxd-Preview-Token"))
	})
	v, other := w.expose("bob", 3000, time.Hour), w.expose("bob", 8080, time.Hour)
	for name, tc := range map[string]struct {
		host   string
		tokens []string
		status int
	}{
		"any host":             {"apps.example", []string{v.Token}, 200},
		"the preview's own":    {hostOf(v), []string{v.Token}, 200},
		"another preview's":    {hostOf(other), []string{v.Token}, 421},
		"unknown":              {"apps.example", []string{strings.Repeat("0", 32)}, 404},
		"two":                  {"apps.example", []string{v.Token, other.Token}, 421},
		"a label for a token":  {"apps.example", []string{"p3000-" + v.Token}, 404},
		"none, and no preview": {"apps.example", nil, 421},
	} {
		resp, body := w.visit(tc.host, "/", http.Header{"Sandboxd-Preview-Token": tc.tokens})
		if resp.StatusCode != tc.status {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
		if tc.status == 200 && body != "host=localhost:3000 token=" {
			t.Errorf("%s: the app saw %q", name, body)
		}
	}
	if err := w.p.Unexpose(t.Context(), "bob", 3000); err != nil {
		t.Fatal(err)
	}
	if resp, _ := w.visit("apps.example", "/", http.Header{"Sandboxd-Preview-Token": {v.Token}}); resp.StatusCode != 410 {
		t.Errorf("a withdrawn token: %d", resp.StatusCode)
	}
}

func residentKiB(t *testing.T, pid int) (kib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// pattern is an endless stream of bytes that differ.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i * 7)
	}
	return len(p), nil
}
