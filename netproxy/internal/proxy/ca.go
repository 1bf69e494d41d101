package proxy

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
	"io"
	"math/big"
	"net"
	"os"
	"sync"
	"time"

	"sandboxd/netproxy/internal/names"
)

// An authority is the certificate authority of one link. Its key is in this
// process and in a file without a name, which the daemon holds unread for the
// process that follows this one. It dies with the link.
type authority struct {
	cert    *x509.Certificate
	pem     []byte
	key     *ecdsa.PrivateKey
	leafKey *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[string]*leaf
}

type leaf struct {
	cert    *tls.Certificate
	expires time.Time
}

const (
	authorityLife = 8 * 24 * time.Hour // longer than a jail may live
	leafLife      = 24 * time.Hour
	backdate      = time.Hour // clocks differ
	maxLeaves     = 256
)

// newAuthority takes up the authority that kept holds, or makes one and leaves
// it there; tenant is "" for a link that is nobody's yet.
func newAuthority(tenant string, kept *os.File) (*authority, error) {
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, maxAuthority)
	n, err := kept.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	defer clear(buf)
	var key *ecdsa.PrivateKey
	var der []byte
	if n > 0 {
		key, der, err = readAuthority(buf[:n])
	} else {
		key, der, err = makeAuthority(tenant, kept)
	}
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{
		cert: cert, key: key, leafKey: leafKey, leaves: map[string]*leaf{},
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

const (
	maxAuthority = 8 << 10
	keyBlock     = "EC PRIVATE KEY"
)

var errAuthority = errors.New("the authority's file is not as it was written")

func readAuthority(b []byte) (*ecdsa.PrivateKey, []byte, error) {
	cert, rest := pem.Decode(b)
	block, _ := pem.Decode(rest)
	if cert == nil || block == nil || block.Type != keyBlock {
		return nil, nil, errAuthority
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, errAuthority
	}
	return key, cert.Bytes, nil
}

func makeAuthority(tenant string, kept *os.File) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "sandboxd egress"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // it signs servers, never another authority
		KeyUsage:              x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if tenant != "" {
		template.Subject.OrganizationalUnit = []string{tenant}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	both := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	both = append(both, pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: secret})...)
	_, err = kept.WriteAt(both, 0)
	clear(both)
	clear(secret)
	return key, der, err
}

func serialNumber() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// leafFor mints or finds the certificate of a host that was granted already
// (step 8).
func (a *authority) leafFor(h names.Host) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if l := a.leaves[h.Name]; l != nil && now.Before(l.expires) {
		return l.cert, nil
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		// The longest common name is 64 characters; the name that counts is below.
		Subject: pkix.Name{CommonName: "sandboxd"},
	}
	if h.IP.IsValid() {
		template.IPAddresses = []net.IP{h.IP.AsSlice()}
	} else {
		template.DNSNames = []string{h.Name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.leafKey.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("leaf: %w", err)
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	cert := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.leafKey}
	a.leaves[h.Name] = &leaf{cert: cert, expires: now.Add(leafLife / 2)}
	return cert, nil
}
