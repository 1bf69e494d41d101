package proxy

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"

	"sandboxd/netproxy/internal/control"
	"sandboxd/policy"
	"sandboxd/secrets"
)

// A Backend is what the proxy asks of the daemon.
type Backend interface {
	// Record returns nil when all decisions are on record and may be carried out
	// (step 22), else an error for each that may not.
	Record(ctx context.Context, list []control.Decision) []error
	// DialJail connects to the port that a preview label stands for.
	DialJail(ctx context.Context, label string) (net.Conn, error)
	// OpenToken opens what a credential's command prints or its socket says.
	OpenToken(ctx context.Context, credential string) (net.Conn, error)
	// Active says that bytes pass on a connection to it.
	Active(label string)
}

// A Server is the state of the proxy process.
type Server struct {
	backend   Backend
	recorder  *recorder
	log       *slog.Logger
	limits    control.Limits
	synthetic netip.Prefix
	roots     *x509.CertPool
	resolver  *hostResolver
	secrets   *secrets.Set
	tokens    tokens
	// placeholderKey makes the placeholders of this start of the daemon.
	placeholderKey []byte
	redactors      redactors
	previews       *previews
	packages       *packages // nil: the daemon keeps none

	mu      sync.Mutex
	tenants map[string]*tenant
	links   map[uint64]*link
}

// NewServer makes a server without tenants: nothing passes yet.
func NewServer(h control.Hello, set *secrets.Set, backend Backend, log *slog.Logger) (*Server, error) {
	s := &Server{
		backend: backend, log: log, limits: h.Limits.Filled(), synthetic: h.Synthetic, secrets: set,
		placeholderKey: h.PlaceholderKey,
		roots:          x509.NewCertPool(), resolver: newResolver(),
		tenants: map[string]*tenant{}, links: map[uint64]*link{},
	}
	s.recorder = newRecorder(backend)
	s.resolver.set(h.Servers)
	if !s.synthetic.IsValid() || !s.synthetic.Addr().Is4() {
		return nil, errors.New("no range for synthetic addresses")
	}
	if !s.roots.AppendCertsFromPEM(h.Roots) {
		return nil, errors.New("no root certificate could be read")
	}
	return s, nil
}

func (s *Server) tenant(name string) *tenant {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[name]
	if t == nil {
		t = newTenant(name, s.limits)
		s.tenants[name] = t
	}
	return t
}

// Attach serves a jail's sockets and returns its authority's certificate.
func (s *Server) Attach(id uint64, name string, files []*os.File) ([]byte, error) {
	l, err := newLink(s, s.tenant(name), files)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links[id] != nil {
		go l.close()
		return nil, fmt.Errorf("link %d is there already", id)
	}
	s.links[id] = l
	return l.ca.pem, nil
}

// Detach ends a link and returns when its connections are closed.
func (s *Server) Detach(id uint64) {
	s.mu.Lock()
	l := s.links[id]
	delete(s.links, id)
	s.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// SetRules replaces a tenant's rules. After an error the tenant has none.
func (s *Server) SetRules(name string, rules []policy.Rule, limits policy.EgressLimits) error {
	t := s.tenant(name)
	t.setLimits(limits)
	return t.setRules(rules, s.newPool(t))
}

// Fetch serves one connection of an isolate.
func (s *Server) Fetch(name, runID string, f *os.File) error {
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return err
	}
	t := s.tenant(name)
	c := &session{s: s, t: t, origin: "isolate", runID: runID, mode: modeIsolate,
		conn: conn, br: bufio.NewReaderSize(conn, readerSize)}
	if e := t.enter(); e != nil {
		c.limited("connection", e, "")
		c.refuse(nil, e.refusal(""))
		conn.Close()
		return nil // the answer says it
	}
	go func() {
		defer t.leave()
		c.guard(c.serve)
	}()
	return nil
}

// Remove ends everything of a tenant.
func (s *Server) Remove(name string) {
	s.mu.Lock()
	t := s.tenants[name]
	delete(s.tenants, name)
	var links []*link
	for id, l := range s.links {
		if l.t.name == name {
			links = append(links, l)
			delete(s.links, id)
		}
	}
	s.mu.Unlock()
	if s.previews != nil {
		s.previews.removeTenant(name)
	}
	if t != nil {
		t.remove()
	}
	for _, l := range links {
		l.close()
	}
}

// Close ends everything.
func (s *Server) Close() {
	s.mu.Lock()
	var all []string
	for name := range s.tenants {
		all = append(all, name)
	}
	s.mu.Unlock()
	for _, name := range all {
		s.Remove(name)
	}
	if s.previews != nil {
		s.previews.close()
	}
	s.recorder.close()
}
