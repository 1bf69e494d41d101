package netproxy

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/egress"
	"sandboxd/secrets"
)

// Config of the egress network and its proxy process.
type Config struct {
	// Exe is the sandboxd binary, started again with the role argument.
	Exe string
	// UID and GID of the proxy process: its own, unprivileged.
	UID, GID uint32
	// RunDir holds the proxy's files, if any.
	RunDir string
	// Preview is the listener of the preview ingress; nil: no previews.
	Preview net.Listener
	// PreviewBase is the authority that browsers use after the host label,
	// such as "localhost:8080".
	PreviewBase string
	// PreviewHTTPS says that visitors come by HTTPS: to the listener itself, or to
	// a proxy of the operator's before it.
	PreviewHTTPS bool
	// PreviewTLS opens the listener's certificate chain and key, PEM, which are
	// handed on unread; with it the listener speaks TLS, and HTTP/2. Nil: plain.
	PreviewTLS func() (chain, key *os.File, err error)
	// PackageDir is where rules with a package cache keep what they download, and
	// PackageMax its bound in bytes; "" keeps nothing.
	PackageDir string
	PackageMax int64
	// Credentials maps names to open files that hold the values, which can be
	// read again; they are handed to each proxy process unread, and closed by
	// Close.
	Credentials map[string]*os.File
	// StoreKey is the open file of the store's key; nil: no store. It is handed
	// to the proxy unread and stays the caller's. Stored is what the store holds.
	StoreKey *os.File
	Stored   func() []secrets.Sealed
	// OnDecisions records decisions, in their order, before they take effect. It
	// returns nil when all of them may be carried out, else an error for each
	// that may not: it is refused, and no secret is used. A *BudgetError says that
	// it is on record as refused.
	OnDecisions func(context.Context, []Decision) []error
	// DialJail connects to a port that a tenant's jail listens on.
	// An error that wraps ECONNREFUSED means that nothing listens there yet.
	DialJail func(ctx context.Context, tenant string, port uint16) (*os.File, error)
	// OpenToken opens what a credential's command prints or its socket says, for
	// the proxy process to read; nil: no such credentials. The name is one that
	// the proxy says: what it stands for is the policy's.
	OpenToken func(ctx context.Context, credential string) (*os.File, error)
	// PreviewActive is told, now and then, that bytes pass on a connection to a
	// tenant's published port, so that it is awake to take them. It may be nil.
	PreviewActive func(ctx context.Context, tenant string) error
	// Links is the IPv4 range of the veth pairs, a /31 each; it exists in the
	// egress namespace and the jails alone. Zero means 10.213.0.0/16.
	Links netip.Prefix
	// Synthetic is the IPv4 range of DNS answers; nothing has these addresses.
	// Zero means 198.18.0.0/15.
	Synthetic netip.Prefix
	// OnState is told when the proxy process has died, when a new one could not
	// be started, and when one serves again; it may be nil and must not block.
	OnState func(State)
	// Limits of each tenant.
	Limits Limits
	Log    *slog.Logger
}

// A Decision is the record of one outgoing request or name lookup.
type Decision = control.Decision

// Limits of one tenant; a field that is not set has its default.
type Limits = control.Limits

// A Link is one jail's way out: a network namespace with one veth end in it.
type Link struct {
	Tenant string // "" for a prepared one
	// NetNS is handed to jail.Spec; Close closes it.
	NetNS *os.File
	// Address is the jail's, Gateway the proxy's on this veth.
	Address, Gateway netip.Addr
	// Env are the proxy variables for processes inside.
	Env map[string]string
	// Resolvers for the jail's resolv.conf.
	Resolvers []string
	// CA is the tenant's own certificate, PEM. The daemon never reads its key.
	CA []byte

	proxy     *Proxy
	id        uint64
	link      *egress.Link
	authority *os.File // the key, for the next process
	attached  bool     // guarded by Proxy.mu: a new process is given the link
	services  services
	once      sync.Once
}

// A Preview is a published port.
type Preview struct {
	Tenant  string    `json:"tenant"`
	Port    uint16    `json:"port"`
	URL     string    `json:"url"`
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}
