package control

import (
	"net/netip"
	"time"

	"sandboxd/netproxy/internal/pkgcache"
	"sandboxd/policy"
)

// Methods. The daemon calls the first group, the proxy the second.
const (
	MethodCredentials = "credentials" // Credentials, one file each
	MethodPreviewTLS  = "previewtls"  // chain and key, PEM → nothing; before Hello, and whenever they are renewed
	MethodStoreKey    = "storekey"    // the key's file
	MethodStored      = "stored"      // Stored → Unopened
	MethodSeal        = "seal"        // Seal, a connection to read the value from → Sealed
	MethodForget      = "forget"      // Forget
	MethodHello       = "hello"       // Hello (preview listener) → nothing
	MethodAuthority   = "authority"   // a file without content → Attached; the file holds the authority
	MethodAttach      = "attach"      // Attach, five sockets and a file for its key → Attached
	MethodDetach      = "detach"      // Detach
	MethodRules       = "rules"       // Rules
	MethodFetch       = "fetch"       // Fetch, one socket
	MethodExpose      = "expose"      // Expose
	MethodUnexpose    = "unexpose"    // Unexpose
	MethodRemove      = "remove"      // Remove
	MethodServers     = "servers"     // Servers
	MethodServe       = "serve"       // Serve, one socket
	MethodUnserve     = "unserve"     // Unserve

	MethodDecisions = "decisions" // []Decision → Recorded
	MethodDialJail  = "dialjail"  // DialJail → one socket
	MethodToken     = "token"     // Token → one socket to read from
	MethodActive    = "active"    // DialJail, a notice

	MethodPackageFind    = "packagefind"    // PackageKey → pkgcache.Meta and a file to read
	MethodPackageBegin   = "packagebegin"   // → PackageWrite and a file to write
	MethodPackageCommit  = "packagecommit"  // PackageWrite → nothing
	MethodPackageAbort   = "packageabort"   // a notice: PackageWrite
	MethodPackageRefresh = "packagerefresh" // PackageWrite, of which key, hash and fresh count → nothing
)

// A Decision is the record of one outgoing request or name lookup.
type Decision struct {
	Time   time.Time `json:"time"`
	Tenant string    `json:"tenant"`
	RunID  string    `json:"run_id,omitempty"`
	// Origin is "jail" or "isolate".
	Origin string `json:"origin"`
	// Kind is "token" (for a credential, on the tenant's behalf), "request", "tunnel", "service", "dns", or "connection" for one that
	// was refused before it said what it is for; Phase "decided" or "finished".
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
	Credential string `json:"credential,omitempty"`
	Status     int    `json:"status,omitempty"`
	// Cache says how the package cache had a part in it: "hit", "revalidated",
	// "miss", "passed"; empty where the rule has none.
	Cache string `json:"cache,omitempty"`
	// Limit says whose limit a Reason such as "rate_limit" is about: "tenant" or
	// "rule". Suppressed is how many refusals of that kind were not put on record
	// before this one, since they came too fast.
	Limit      string        `json:"limit,omitempty"`
	Suppressed int64         `json:"suppressed,omitempty"`
	BytesOut   int64         `json:"bytes_out"`
	BytesIn    int64         `json:"bytes_in"`
	Duration   time.Duration `json:"duration"`
}

// PackageKey names a kept answer.
type PackageKey struct {
	Key string `json:"key"`
}

// PackageWrite is about an answer that is being kept.
type PackageWrite struct {
	ID   uint64        `json:"id"`
	Key  string        `json:"key,omitempty"`
	Meta pkgcache.Meta `json:"meta"`
}

// Recorded acknowledges decisions: all are on record but those whose Verdict says
// otherwise. They are named by their place in the list.
type Recorded struct {
	Refused map[int]Verdict `json:"refused,omitempty"`
}

// Credentials names the files that come with the message, in order.
type Credentials struct {
	Names []string `json:"names"`
}

// Hello is the proxy's configuration. With Preview set, the preview listener
// comes with it.
type Hello struct {
	// Roots are the certificates, PEM, that upstream servers are verified
	// against.
	Roots       []byte `json:"roots"`
	Preview     bool   `json:"preview"`
	PreviewBase string `json:"preview_base"`
	// PreviewHTTPS says that visitors come by HTTPS.
	PreviewHTTPS bool `json:"preview_https"`
	// Packages says that the daemon keeps packages.
	Packages bool `json:"packages"`
	// Servers are the host's name servers.
	Servers []netip.AddrPort `json:"servers"`
	// Synthetic is where DNS answers come from.
	Synthetic netip.Prefix `json:"synthetic"`
	// PlaceholderKey makes the placeholders of credentials.
	PlaceholderKey []byte `json:"placeholder_key"`
	Limits         Limits `json:"limits"`
}

// Limits of one tenant (step 2).
type Limits struct {
	// Connections at the same time, jail and isolates together.
	Connections int `json:"connections"`
	// Requests and lookups in a second, and in one go.
	Rate  float64 `json:"rate"`
	Burst int     `json:"burst"`
	// Header is how long a request head or a TLS handshake may take, Idle how
	// long nothing may happen on a kept-alive connection or in a transfer,
	// Dial how long name lookup and connection each may take, Answer how long
	// a server may think, Total how long a request or tunnel may last.
	Header time.Duration `json:"header"`
	Idle   time.Duration `json:"idle"`
	Dial   time.Duration `json:"dial"`
	Answer time.Duration `json:"answer"`
	Total  time.Duration `json:"total"`
	// Tunnel is how long nothing may move in a tunnel.
	Tunnel time.Duration `json:"tunnel"`
}

// DefaultLimits are used for each field that is not set.
func DefaultLimits() Limits {
	return Limits{
		Connections: 512, Rate: 5000, Burst: 10000,
		Header: 10 * time.Second, Idle: 2 * time.Minute, Dial: 10 * time.Second,
		Answer: 5 * time.Minute, Total: 12 * time.Hour, Tunnel: 30 * time.Minute,
	}
}

// Filled returns l with the defaults where nothing is set.
func (l Limits) Filled() Limits {
	d := DefaultLimits()
	if l.Connections <= 0 {
		l.Connections = d.Connections
	}
	if l.Rate <= 0 {
		l.Rate = d.Rate
	}
	if l.Burst <= 0 {
		l.Burst = d.Burst
	}
	for _, f := range []struct{ v, d *time.Duration }{
		{&l.Header, &d.Header}, {&l.Idle, &d.Idle}, {&l.Dial, &d.Dial}, {&l.Answer, &d.Answer}, {&l.Total, &d.Total},
		{&l.Tunnel, &d.Tunnel},
	} {
		if *f.v <= 0 {
			*f.v = *f.d
		}
	}
	return l
}

// Attach gives the proxy a jail's sockets.
type Attach struct {
	Tenant  string     `json:"tenant"`
	Link    uint64     `json:"link"`
	Gateway netip.Addr `json:"gateway"`
}

// Attached carries the certificate of the link's own authority, PEM.
type Attached struct {
	CA []byte `json:"ca"`
}

// Serve offers a named service of the rules to a link's jail: the socket listens
// on its device, at an address that stands for the host.
type Serve struct {
	Link    uint64     `json:"link"`
	Host    string     `json:"host"`
	Port    uint16     `json:"port"`
	Address netip.Addr `json:"address"`
}

// Unserve ends that.
type Unserve struct {
	Link uint64 `json:"link"`
	Host string `json:"host"`
	Port uint16 `json:"port"`
}

// Detach ends a link.
type Detach struct {
	Link uint64 `json:"link"`
}

// Rules replaces a tenant's rules.
type Rules struct {
	Tenant string        `json:"tenant"`
	Rules  []policy.Rule `json:"rules"`
	// Limits hold for all rules together.
	Limits policy.EgressLimits `json:"limits,omitzero"`
}

// Fetch gives the proxy one end of an isolate's connection.
type Fetch struct {
	Tenant string `json:"tenant"`
	RunID  string `json:"run_id"`
}

// Expose publishes a port under a host label.
type Expose struct {
	Label   string    `json:"label"`
	Tenant  string    `json:"tenant"`
	Port    uint16    `json:"port"`
	Expires time.Time `json:"expires"`
}

// Unexpose withdraws a label.
type Unexpose struct {
	Label string `json:"label"`
}

// Remove ends everything of a tenant.
type Remove struct {
	Tenant string `json:"tenant"`
}

// Servers replaces the name servers.
type Servers struct {
	Servers []netip.AddrPort `json:"servers"`
}

// DialJail asks for a connection to a published port, or says that bytes pass on
// one.
type DialJail struct {
	Label string `json:"label"`
}
