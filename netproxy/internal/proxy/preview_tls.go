package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// maxPEM bounds a certificate chain or a key in bytes.
const maxPEM = 1 << 20

// A certificate is what the preview listener shows. It can be renewed while
// connections last; its key is read in this process only.
type certificate struct {
	current atomic.Pointer[tls.Certificate]
}

// read takes chain and key, PEM, from their files. After an error the old pair
// stays.
func (c *certificate) read(chain, key *os.File) error {
	var pem [2][]byte
	for i, f := range []*os.File{chain, key} {
		b, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
		if err == nil && len(b) > maxPEM {
			err = errors.New("larger than 1 MiB")
		}
		if err != nil {
			return fmt.Errorf("the preview's certificate: %w", err)
		}
		pem[i] = b
	}
	pair, err := tls.X509KeyPair(pem[0], pem[1])
	if err != nil {
		return fmt.Errorf("the preview's certificate: %w", err)
	}
	c.current.Store(&pair)
	return nil
}

// config is the listener's, or nil as long as there is no certificate.
func (c *certificate) config() *tls.Config {
	if c.current.Load() == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.current.Load(), nil
		},
	}
}
