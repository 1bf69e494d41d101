package netproxy

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Where distributions keep their roots: one file, or a folder of files.
var (
	rootFiles = []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
		"/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	}
	rootDirs = []string{"/etc/ssl/certs", "/etc/pki/tls/certs"}
)

// ErrNoRoots says that this host has no root certificates.
var ErrNoRoots = errors.New("netproxy: this host has no root certificates; install ca-certificates or set SSL_CERT_FILE")

// HostRoots returns the certificates, PEM, that this host trusts, also by
// SSL_CERT_FILE and SSL_CERT_DIR. The daemon reads them, because the proxy
// process can open nothing.
func HostRoots() ([]byte, error) {
	files, dirs := rootFiles, rootDirs
	if f := os.Getenv("SSL_CERT_FILE"); f != "" {
		files = []string{f}
	}
	if d := os.Getenv("SSL_CERT_DIR"); d != "" {
		dirs = filepath.SplitList(d)
	}
	seen := map[string]bool{}
	var out bytes.Buffer
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			appendCerts(&out, b, seen)
			break
		}
	}
	// A folder counts when it was asked for, or when there was no file.
	if os.Getenv("SSL_CERT_DIR") != "" || out.Len() == 0 {
		for _, d := range dirs {
			entries, err := os.ReadDir(d)
			if err != nil {
				continue
			}
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), ".") {
					continue
				}
				if b, err := os.ReadFile(filepath.Join(d, e.Name())); err == nil {
					appendCerts(&out, b, seen)
				}
			}
		}
	}
	if out.Len() == 0 {
		return nil, ErrNoRoots
	}
	return out.Bytes(), nil
}

// appendCerts adds the certificates of a PEM file that can be parsed, each
// once.
func appendCerts(out *bytes.Buffer, b []byte, seen map[string]bool) {
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			return
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 || seen[string(block.Bytes)] {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			continue
		}
		seen[string(block.Bytes)] = true
		_ = pem.Encode(out, &pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})
	}
}
