package proxy

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/netproxy/internal/control"
	"sandboxd/policy"
	"sandboxd/secrets"
)

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// accepting is a daemon that puts everything on record at once.
type accepting struct{}

func (accepting) Record(context.Context, []control.Decision) []error  { return nil }
func (accepting) OpenToken(context.Context, string) (net.Conn, error) { return nil, errToken }
func (accepting) Active(string)                                       {}
func (accepting) DialJail(context.Context, string) (net.Conn, error) {
	return nil, ErrNotListening
}

// BenchmarkForward is the proxy's own work for one request: no daemon to ask,
// no TLS, an upstream that answers at once.
func BenchmarkForward(b *testing.B) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer up.Close()
	tlsUp := httptest.NewTLSServer(http.NotFoundHandler())
	defer tlsUp.Close()
	roots := pemOf(tlsUp.Certificate())
	s, err := NewServer(control.Hello{Roots: roots, Synthetic: netip.MustParsePrefix("198.18.0.0/15"),
		Limits: control.Limits{Rate: 1e9, Burst: 1e9}}, &secrets.Set{}, accepting{}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	port := uint16(up.Listener.Addr().(*net.TCPAddr).Port)
	if err := s.SetRules("a", []policy.Rule{{ID: "1", Host: "up.test", Scheme: "http", Ports: []uint16{port},
		Resolve: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}, policy.EgressLimits{}); err != nil {
		b.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Fetch("a", "r", os.NewFile(uintptr(fds[1]), "theirs")); err != nil {
		b.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "ours")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	br := bufio.NewReader(c)
	head := []byte(fmt.Sprintf("GET http://up.test:%d/ HTTP/1.1\r\nHost: up.test:%d\r\n\r\n", port, port))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(head); err != nil {
			b.Fatal(err)
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			b.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hello" {
			b.Fatal(string(body), err)
		}
	}
}
