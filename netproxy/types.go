package netproxy

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"
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
	// Credentials maps names to open files that hold the values; they are
	// handed to the proxy unread and closed here.
	Credentials map[string]*os.File
	// OnDecision records a decision before it takes effect. An error means it
	// could not be recorded: the request is refused and no secret is used.
	OnDecision func(context.Context, Decision) error
	// DialJail connects to a port that a tenant's jail listens on.
	DialJail func(ctx context.Context, tenant string, port uint16) (*os.File, error)
	Log      *slog.Logger
}

// A Decision is the record of one outgoing request or name lookup.
type Decision struct {
	Time   time.Time `json:"time"`
	Tenant string    `json:"tenant"`
	RunID  string    `json:"run_id,omitempty"`
	// Origin is "jail" or "isolate".
	Origin string `json:"origin"`
	// Kind is "request", "tunnel" or "dns"; Phase "decided" or "finished".
	Kind    string     `json:"kind"`
	Phase   string     `json:"phase"`
	Allowed bool       `json:"allowed"`
	Reason  string     `json:"reason,omitempty"` // fixed words such as "no_rule"
	Rule    string     `json:"rule,omitempty"`
	Scheme  string     `json:"scheme,omitempty"`
	Host    string     `json:"host"`
	Port    uint16     `json:"port,omitempty"`
	Method  string     `json:"method,omitempty"`
	Path    string     `json:"path,omitempty"` // without query
	Address netip.Addr `json:"address,omitzero"`
	// Credential is a name, never a value.
	Credential string        `json:"credential,omitempty"`
	Status     int           `json:"status,omitempty"`
	BytesOut   int64         `json:"bytes_out"`
	BytesIn    int64         `json:"bytes_in"`
	Duration   time.Duration `json:"duration"`
}

// A Link is one jail's way out: a network namespace with one veth end in it.
type Link struct {
	Tenant string
	// NetNS is handed to jail.Spec; Close closes it.
	NetNS *os.File
	// Address is the jail's, Gateway the proxy's on this veth.
	Address, Gateway netip.Addr
	// Env are the proxy variables for processes inside.
	Env map[string]string
	// Resolvers for the jail's resolv.conf.
	Resolvers []string
	// CA is the tenant's own certificate, PEM; its key is in the proxy only.
	CA []byte

	close func() error
}

// A Preview is a published port.
type Preview struct {
	Tenant  string    `json:"tenant"`
	Port    uint16    `json:"port"`
	URL     string    `json:"url"`
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}
