package harness

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"sandboxd/tests/internal/outside"
)

// The world's names. What they resolve to is a rule's to say.
const (
	APIHost    = "api.world.test"    // wants the bearer token
	OtherHost  = "other.world.test"  // wants nothing
	DeniedHost = "denied.world.test" // served, granted to nobody
	CredHost   = "cred.world.test"   // whatever World.Handle says, as LoginHost
	LoginHost  = "login.world.test"
)

// worlds is how many can stand beside each other, one for each network of four
// addresses in TEST-NET-2. It meets no real host, and sandboxd refuses it unless
// a rule names the range, just as an operator's internal network.
const worlds = 64

// A Seen is one request that reached the world.
type Seen struct {
	Host, Method, Path, Query string
	// Authorised tells whether it carried the token.
	Authorised bool
	Header     http.Header
}

// A World is the outside: an HTTPS server in a network namespace of its own.
type World struct {
	*outside.Server
	Token string // what APIHost wants; no sandbox may ever see it
	// Addr is where the server is, Gateway the host's end of its link, Prefix
	// the network of the two.
	Addr, Gateway netip.Addr
	Prefix        netip.Prefix

	mu     sync.Mutex
	seen   []Seen
	handle map[string]http.HandlerFunc // by host
}

// NewWorld makes the namespace, its link and the server. It needs root.
func NewWorld() (*World, error) {
	w := &World{Token: "tok_" + rand.Text()}
	c, err := place()
	if err != nil {
		return nil, err
	}
	c.Names, c.Handler = []string{APIHost, OtherHost, DeniedHost, CredHost, LoginHost}, http.HandlerFunc(w.serve)
	w.Addr, w.Gateway, w.Prefix = c.Addr, c.Host, c.Prefix()
	if w.Server, err = outside.Start(c); err != nil {
		return nil, fmt.Errorf("harness: world: %w", err)
	}
	return w, nil
}

// place finds a network that no other suite on this machine has.
func place() (outside.Config, error) {
	for i := range worlds {
		network := byte((i + os.Getpid()) % worlds * 4)
		name := fmt.Sprintf("sbxworld%d", network)
		if _, err := net.InterfaceByName(name); err != nil {
			return outside.Config{Link: name, Host: netip.AddrFrom4([4]byte{198, 51, 100, network + 1}), Addr: netip.AddrFrom4([4]byte{198, 51, 100, network + 2})}, nil
		}
	}
	return outside.Config{}, errors.New("harness: world: all networks are taken")
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

// Handle has a test answer for a host.
func (w *World) Handle(host string, f http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.handle == nil {
		w.handle = map[string]http.HandlerFunc{}
	}
	w.handle[host] = f
}

// serve answers under /v1/ with what it saw; APIHost wants the token first.
// /v1/leak plays the careless server: it sends the token back.
func (w *World) serve(rw http.ResponseWriter, r *http.Request) {
	host, _, _ := strings.Cut(r.Host, ":")
	authorised := r.Header.Get("Authorization") == "Bearer "+w.Token
	w.mu.Lock()
	w.seen = append(w.seen, Seen{Host: host, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Authorised: authorised, Header: r.Header.Clone()})
	handle := w.handle[host]
	w.mu.Unlock()
	if handle != nil {
		handle(rw, r)
		return
	}
	// An upload is whole before it is answered.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
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

// Reach asks the world directly, without sandboxd: what the suites' refusals
// are held against.
func (w *World) Reach(ctx context.Context, url string) (int, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.CA)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, netip.AddrPortFrom(w.Addr, 443).String())
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
