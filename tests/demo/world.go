package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The world's names and addresses. The addresses are documentation addresses
// (TEST-NET-1), so they meet no real host, and sandboxd refuses them unless a
// rule names them: just as it does with an operator's internal network.
const (
	apiHost   = "api.demo.test"
	gitHost   = "git.demo.test"
	worldLink = "sbxdemo0"
	hostAddr  = "203.0.113.1/30"
	worldAddr = "203.0.113.2"
)

// A world is the outside that sandboxes reach through the proxy: two HTTPS
// servers in a network namespace of their own.
type world struct {
	caPEM    []byte
	apiToken string // what the API wants; no sandbox ever sees it
	gitToken string

	authorised atomic.Int64 // API requests that carried the token
	refused    atomic.Int64

	ns       netns.NsHandle
	servers  []*http.Server
	linkMade bool
}

func newWorld(dir string) (*world, error) {
	w := &world{ns: netns.None()}
	var err error
	if w.apiToken, err = randomToken("demo_api_"); err != nil {
		return nil, err
	}
	if w.gitToken, err = randomToken("demo_git_"); err != nil {
		return nil, err
	}
	repo, err := makeRepository(dir)
	if err != nil {
		return nil, err
	}
	cert, err := w.makeCertificates()
	if err != nil {
		return nil, err
	}
	listener, err := w.makeNamespace()
	if err != nil {
		w.close()
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc(apiHost+"/v1/rates", w.serveRates)
	mux.Handle(gitHost+"/", w.gitHandler(repo))
	server := &http.Server{
		Handler:           mux,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
	}
	w.servers = append(w.servers, server)
	go server.ServeTLS(listener, "", "")
	return w, nil
}

func (w *world) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, s := range w.servers {
		if s.Shutdown(ctx) != nil {
			s.Close()
		}
	}
	if w.linkMade {
		if l, err := netlink.LinkByName(worldLink); err == nil {
			netlink.LinkDel(l)
		}
	}
	if w.ns.IsOpen() {
		w.ns.Close()
	}
}

// makeNamespace makes the namespace, a veth pair whose far end is born in it,
// and a listener there. Namespaces belong to threads, so all of it happens on
// one that is locked, and thrown away if it cannot be put back.
func (w *world) makeNamespace() (net.Listener, error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("own network namespace: %w", err)
	}
	defer home.Close()
	if w.ns, err = netns.New(); err != nil {
		return nil, fmt.Errorf("make the world's network namespace: %w", err)
	}
	back := func() error {
		if err := netns.Set(home); err != nil {
			return fmt.Errorf("back to the own network namespace: %w", err)
		}
		runtime.UnlockOSThread()
		return nil
	}
	if err := back(); err != nil {
		return nil, err
	}
	if old, err := netlink.LinkByName(worldLink); err == nil {
		netlink.LinkDel(old) // left by a demo that was killed
	}
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: worldLink},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(int(w.ns)),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make the link to the world: %w", err)
	}
	w.linkMade = true
	if err := address(netlink.LinkByName, netlink.AddrAdd, netlink.LinkSetUp, worldLink, hostAddr); err != nil {
		return nil, err
	}
	far, err := netlink.NewHandleAt(w.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink in the world: %w", err)
	}
	defer far.Close()
	if err := address(far.LinkByName, far.AddrAdd, far.LinkSetUp, "eth0", worldAddr+"/30"); err != nil {
		return nil, err
	}

	runtime.LockOSThread()
	if err := netns.Set(w.ns); err != nil {
		return nil, fmt.Errorf("enter the world: %w", err)
	}
	listener, listenErr := net.Listen("tcp", worldAddr+":443")
	if err := back(); err != nil {
		return nil, err
	}
	if listenErr != nil {
		return nil, fmt.Errorf("listen in the world: %w", listenErr)
	}
	return listener, nil
}

func address(find func(string) (netlink.Link, error), add func(netlink.Link, *netlink.Addr) error, up func(netlink.Link) error, link, cidr string) error {
	l, err := find(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if err := add(l, a); err != nil {
		return fmt.Errorf("address %s on %s: %w", cidr, link, err)
	}
	if err := up(l); err != nil {
		return fmt.Errorf("bring %s up: %w", link, err)
	}
	return nil
}

// makeCertificates makes the world's own authority and a server certificate.
func (w *world) makeCertificates() (tls.Certificate, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sandboxd demo world"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	w.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: apiHost},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: []string{apiHost, gitHost},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// serveRates is the API: it answers only to the bearer token.
func (w *world) serveRates(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+w.apiToken {
		w.refused.Add(1)
		http.Error(rw, `{"error":"token wanted"}`, http.StatusUnauthorized)
		return
	}
	w.authorised.Add(1)
	rw.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(rw, `{"base":%q,"rates":{"USD":1.25,"CHF":0.95}}`, r.URL.Query().Get("base"))
}

// gitHandler is git's own HTTP server behind basic authentication.
func (w *world) gitHandler(repo string) http.Handler {
	gitPath, err := exec.LookPath("git")
	if err != nil {
		gitPath = "/usr/bin/git"
	}
	backend := &cgi.Handler{
		Path: gitPath, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(repo), "GIT_HTTP_EXPORT_ALL=1"},
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != w.gitToken {
			rw.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(rw, "credentials wanted", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(rw, r)
	})
}

// makeRepository commits the demo's web project to a bare repository.
func makeRepository(dir string) (string, error) {
	tree, bare := filepath.Join(dir, "tiny-site"), filepath.Join(dir, "git", "tiny-site.git")
	if err := os.CopyFS(tree, projectFiles()); err != nil {
		return "", fmt.Errorf("write the project: %w", err)
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", tree},
		{"-C", tree, "add", "."},
		{"-C", tree, "-c", "user.name=demo", "-c", "user.email=demo@demo.test", "commit", "-q", "-m", "A tiny site"},
		{"clone", "-q", "--bare", tree, bare},
	} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return bare, nil
}

func randomToken(prefix string) (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%x", prefix, b), nil
}
