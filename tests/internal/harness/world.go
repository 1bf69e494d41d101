package harness

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The world's names and addresses. TEST-NET-2 meets no real host, and sandboxd
// refuses it unless a rule names the range, just as an operator's internal
// network.
const (
	APIHost     = "api.world.test"    // wants the bearer token
	OtherHost   = "other.world.test"  // wants nothing
	DeniedHost  = "denied.world.test" // served, granted to nobody
	WorldPrefix = "198.51.100.0/30"   // what rules name
	WorldAddr   = "198.51.100.2"      // where the server is
	hostAddr    = "198.51.100.1/30"   // the host's end
	worldLink   = "sbxworld0"
)

// A Seen is one request that reached the world.
type Seen struct {
	Host, Method, Path, Query string
	// Authorised tells whether it carried the token.
	Authorised bool
	Header     http.Header
}

// A World is the outside: an HTTPS server in a network namespace of its own.
type World struct {
	CA    []byte // PEM
	Token string // what APIHost wants; no sandbox may ever see it

	mu   sync.Mutex
	seen []Seen

	ns     netns.NsHandle
	server *http.Server
	linked bool
}

// NewWorld makes the namespace, its link and the server. It needs root.
func NewWorld() (*World, error) {
	w := &World{ns: netns.None(), Token: "tok_" + rand.Text()}
	cert, err := w.certify()
	if err != nil {
		return nil, fmt.Errorf("harness: world: %w", err)
	}
	listener, err := w.listen()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("harness: world: %w", err), w.Close())
	}
	w.server = &http.Server{
		Handler:           http.HandlerFunc(w.serve),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
	}
	go w.server.ServeTLS(listener, "", "")
	return w, nil
}

// Close ends the server, its link and its namespace.
func (w *World) Close() error {
	var errs []error
	if w.server != nil {
		errs = append(errs, w.server.Close())
	}
	if w.linked {
		if l, err := netlink.LinkByName(worldLink); err == nil {
			errs = append(errs, netlink.LinkDel(l))
		}
	}
	if w.ns.IsOpen() {
		errs = append(errs, w.ns.Close())
	}
	return errors.Join(errs...)
}

// Requests lists what reached host since the world began.
func (w *World) Requests(host string) []Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(func(yield func(Seen) bool) {
		for _, s := range w.seen {
			if s.Host == host && !yield(s) {
				return
			}
		}
	})
}

// serve answers under /v1/ with what it saw; APIHost wants the token first.
// /v1/leak plays the careless server: it sends the token back.
func (w *World) serve(rw http.ResponseWriter, r *http.Request) {
	host, _, _ := strings.Cut(r.Host, ":")
	authorised := r.Header.Get("Authorization") == "Bearer "+w.Token
	w.mu.Lock()
	w.seen = append(w.seen, Seen{Host: host, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Authorised: authorised, Header: r.Header.Clone()})
	w.mu.Unlock()
	rw.Header().Set("Content-Type", "application/json")
	switch {
	case host == APIHost && !authorised:
		rw.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(rw, `{"error":"token wanted"}`)
	case r.URL.Path == "/v1/leak":
		rw.Header().Set("X-Leak", w.Token)
		fmt.Fprintf(rw, `{"you_sent":%q}`, r.Header.Get("Authorization"))
	case r.URL.Path == "/v1/redirect":
		http.Redirect(rw, r, "https://"+OtherHost+"/v1/target", http.StatusFound)
	default:
		// A failed write is the client's affair.
		_ = json.NewEncoder(rw).Encode(map[string]any{"host": host, "path": r.URL.Path, "method": r.Method, "ok": true})
	}
}

// listen makes the namespace and a veth pair whose far end is born in it, and
// opens the listener there. A thread that could not be brought back home is
// never unlocked, so the runtime ends it with the goroutine.
func (w *World) listen() (net.Listener, error) {
	type result struct {
		listener net.Listener
		err      error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer home.Close()
		if w.ns, err = netns.New(); err != nil {
			done <- result{nil, err}
			return
		}
		l, err := w.link(home)
		if err := errors.Join(err, netns.Set(home)); err == nil {
			runtime.UnlockOSThread()
		}
		done <- result{l, err}
	}()
	r := <-done
	return r.listener, r.err
}

// link runs inside the new namespace.
func (w *World) link(home netns.NsHandle) (net.Listener, error) {
	near, err := netlink.NewHandleAt(home, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer near.Close()
	if old, err := near.LinkByName(worldLink); err == nil {
		if err := near.LinkDel(old); err != nil { // of a suite that was killed
			return nil, err
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: worldLink}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(w.ns))}
	if err := near.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	w.linked = true
	far, err := netlink.NewHandleAt(w.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer far.Close()
	if err := errors.Join(up(near, worldLink, hostAddr), up(far, "eth0", WorldAddr+"/30"), up(far, "lo", "")); err != nil {
		return nil, err
	}
	return net.Listen("tcp", WorldAddr+":443")
}

func up(h *netlink.Handle, name, cidr string) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if cidr != "" {
		a, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		if err := h.AddrAdd(l, a); err != nil {
			return fmt.Errorf("%s: address: %w", name, err)
		}
	}
	return h.LinkSetUp(l)
}

// certify makes the world's own authority and the server's certificate.
func (w *World) certify() (tls.Certificate, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sandboxd test world"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	w.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: APIHost},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: []string{APIHost, OtherHost, DeniedHost},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Reach asks the world directly, without sandboxd: what the suites' refusals
// are held against.
func (w *World) Reach(ctx context.Context, url string) (int, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.CA)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, WorldAddr+":443")
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
