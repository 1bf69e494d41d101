package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/net/idna"

	"sandboxd/daemon"
)

// previewOptions say where published ports are served and how visitors come.
type previewOptions struct{ address, url, cert, key string }

func (o *previewOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.address, "preview", o.address, "address of the preview listener, HOST:PORT; empty means none")
	f.StringVar(&o.url, "preview-url", "", "how visitors reach that listener, such as https://preview.example.com: each published port is a host below it (default: http://localhost and the listener's port)")
	f.StringVar(&o.cert, "preview-cert", "", "certificate chain (PEM) of the preview listener, which then speaks TLS and HTTP/2; for *.HOST of --preview-url")
	f.StringVar(&o.key, "preview-key", "", "the key (PEM) of that certificate")
}

// check holds the options against each other.
func (o *previewOptions) check() error {
	if (o.cert == "") != (o.key == "") {
		return errors.New("--preview-cert and --preview-key belong together: give both or none")
	}
	if o.url == "" {
		if o.cert != "" {
			return errors.New("--preview-cert: --preview-url must say which host name the certificate is for")
		}
		return nil
	}
	u, err := url.Parse(o.url)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("--preview-url: %q is not https://HOST or http://HOST, with a port if need be", o.url)
	case u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("--preview-url: %q holds more than a scheme, a host and a port", o.url)
	case net.ParseIP(u.Hostname()) != nil:
		return fmt.Errorf("--preview-url: %q is an address; each published port is a host name below a name", o.url)
	case u.Scheme == "http" && o.cert != "":
		return errors.New("--preview-url: with --preview-cert it begins with https://")
	}
	if _, err := idna.Lookup.ToASCII(u.Hostname()); err != nil {
		return fmt.Errorf("--preview-url: %q is no host name: %w", u.Hostname(), err)
	}
	return nil
}

// apply opens the preview listener unless l is it, and tells the daemon how it
// is reached. Without a URL that is localhost, which browsers resolve to the
// loopback by themselves.
func (o *previewOptions) apply(cfg *daemon.Config, l net.Listener) error {
	if l == nil && o.address != "" {
		var err error
		if l, err = net.Listen("tcp", o.address); err != nil {
			return fmt.Errorf("--preview: %w", err)
		}
	}
	if l == nil {
		return nil
	}
	cfg.Preview = l
	if o.url == "" {
		_, port, err := net.SplitHostPort(l.Addr().String())
		cfg.PreviewBase = net.JoinHostPort("localhost", port)
		return err
	}
	u, err := url.Parse(o.url)
	if err != nil {
		return fmt.Errorf("--preview-url: %w", err)
	}
	cfg.PreviewBase, cfg.PreviewHTTPS = u.Host, u.Scheme == "https"
	if o.cert != "" {
		cfg.PreviewTLS = o.openCertificate
		chain, key, err := o.openCertificate()
		if err != nil {
			return err
		}
		return errors.Join(chain.Close(), key.Close())
	}
	return nil
}

// openCertificate opens the files without reading them: the key is for the
// egress proxy alone.
func (o *previewOptions) openCertificate() (chain, key *os.File, err error) {
	if chain, err = os.Open(o.cert); err != nil {
		return nil, nil, fmt.Errorf("--preview-cert: %w", err)
	}
	if key, err = os.Open(o.key); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--preview-key: %w", err), chain.Close())
	}
	return chain, key, nil
}
