package outside

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Config of a Server.
type Config struct {
	// Link is the name of the host's end of the veth pair.
	Link string
	// Host and Addr are the two ends' addresses, in one /30 that meets no real
	// host: a documentation or benchmark range.
	Host, Addr netip.Addr
	// Names are what the certificate is for.
	Names   []string
	Handler http.Handler
}

// Prefix is the network that both ends are in: what a rule must name.
func (c *Config) Prefix() netip.Prefix {
	return netip.PrefixFrom(c.Addr, 30).Masked()
}

// A Server answers on port 443 of Config.Addr.
type Server struct {
	CA []byte // of its authority, PEM

	link   string
	ns     netns.NsHandle
	server *http.Server
	linked bool
}

// Start makes the namespace, its link and the server. After an error nothing of
// it is left.
func Start(c Config) (*Server, error) {
	s := &Server{link: c.Link, ns: netns.None()}
	cert, err := s.certify(c.Names)
	if err != nil {
		return nil, fmt.Errorf("outside: certificates: %w", err)
	}
	listener, err := s.listen(&c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("outside: %w", err), s.Close())
	}
	s.server = &http.Server{
		Handler:           c.Handler,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
	}
	go s.server.ServeTLS(listener, "", "")
	return s, nil
}

// Close ends the server, its link and its namespace.
func (s *Server) Close() error {
	var errs []error
	if s.server != nil {
		errs = append(errs, s.server.Close())
	}
	if s.linked {
		if l, err := netlink.LinkByName(s.link); err == nil {
			errs = append(errs, netlink.LinkDel(l))
		}
	}
	if s.ns.IsOpen() {
		errs = append(errs, s.ns.Close())
	}
	return errors.Join(errs...)
}

// listen makes the namespace and opens the listener there. A thread that could
// not be brought back home is never unlocked, so the runtime ends it with the
// goroutine.
func (s *Server) listen(c *Config) (net.Listener, error) {
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
		if s.ns, err = netns.New(); err != nil {
			done <- result{nil, err}
			return
		}
		l, err := s.connect(c, home)
		back := netns.Set(home)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- result{l, errors.Join(err, back)}
	}()
	r := <-done
	if r.err != nil && r.listener != nil {
		r.listener.Close()
	}
	return r.listener, r.err
}

// connect runs inside the new namespace: the veth pair's far end is born there.
func (s *Server) connect(c *Config, home netns.NsHandle) (net.Listener, error) {
	near, err := netlink.NewHandleAt(home, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer near.Close()
	if old, err := near.LinkByName(c.Link); err == nil {
		if err := near.LinkDel(old); err != nil { // of a run that was killed
			return nil, err
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.Link}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(s.ns))}
	if err := near.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("link %s: %w", c.Link, err)
	}
	s.linked = true
	far, err := netlink.NewHandleAt(s.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer far.Close()
	if err := errors.Join(up(near, c.Link, c.Host), up(far, "eth0", c.Addr), up(far, "lo", netip.Addr{})); err != nil {
		return nil, err
	}
	return net.Listen("tcp", netip.AddrPortFrom(c.Addr, 443).String())
}

// up gives a link its address, if there is one, and starts it.
func up(h *netlink.Handle, name string, addr netip.Addr) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if addr.IsValid() {
		a, err := netlink.ParseAddr(netip.PrefixFrom(addr, 30).String())
		if err != nil {
			return err
		}
		if err := h.AddrAdd(l, a); err != nil {
			return fmt.Errorf("%s: address: %w", name, err)
		}
	}
	return h.LinkSetUp(l)
}

// certify makes the authority and the server's certificate.
func (s *Server) certify(names []string) (tls.Certificate, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sandboxd test outside"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	s.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
