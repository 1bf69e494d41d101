package netproxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"sandboxd/policy"
)

// A Proxy is the running egress network and proxy process.
type Proxy struct{}

// Start makes the egress namespace and starts the proxy process. It returns
// when that process is confined and serves.
func Start(ctx context.Context, cfg Config) (*Proxy, error) { return nil, errors.ErrUnsupported }

// Attach makes a network namespace whose only neighbour is the proxy.
func (p *Proxy) Attach(ctx context.Context, tenant string) (*Link, error) {
	return nil, errors.ErrUnsupported
}

// Close takes the link down and closes NetNS. It may be called again.
func (l *Link) Close() error { return nil }

// SetRules replaces what the tenant may reach, in one step. Requests and
// tunnels that the new rules no longer grant are cut.
func (p *Proxy) SetRules(ctx context.Context, tenant string, rules []policy.Rule) error {
	return errors.ErrUnsupported
}

// Fetch returns the way out for one run of an isolate. A refusal is a
// *DeniedError. Callers that are done with it call CloseIdleConnections on an
// http.Client around it, or on the value itself.
func (p *Proxy) Fetch(tenant, runID string) http.RoundTripper { return nil }

// Expose publishes a port of the tenant's jail under an unguessable host name.
func (p *Proxy) Expose(ctx context.Context, tenant string, port uint16, ttl time.Duration) (Preview, error) {
	return Preview{}, errors.ErrUnsupported
}

// Ports lists what the tenant has published.
func (p *Proxy) Ports(tenant string) []Preview { return nil }

// Unexpose withdraws a published port; open connections are cut.
func (p *Proxy) Unexpose(ctx context.Context, tenant string, port uint16) error {
	return errors.ErrUnsupported
}

// RemoveTenant ends everything the tenant has here: link, rules, previews.
func (p *Proxy) RemoveTenant(ctx context.Context, tenant string) error {
	return errors.ErrUnsupported
}

// Close ends the proxy process and the egress namespace.
func (p *Proxy) Close(ctx context.Context) error { return nil }

// Done is closed when the proxy process has ended, for whatever reason.
func (p *Proxy) Done() <-chan struct{} { return nil }

// HostRoots returns the certificates, PEM, that this host trusts, also by
// SSL_CERT_FILE and SSL_CERT_DIR.
func HostRoots() ([]byte, error) { return nil, errors.ErrUnsupported }

// Main is the role "netproxy": it runs the proxy process on descriptor 3 and
// does not return.
func Main() {}
