package policy

import (
	"net/netip"
	"slices"
)

// Limits bound one run, one exec or one jail. A zero field is not set: the
// profile's value, then the built-in default, applies. A request can only
// lower what its profile allows.
type Limits struct {
	// Wall is the longest time from start to end.
	Wall Duration `json:"wall,omitempty" yaml:"wall,omitempty"`
	// CPU is processor time; its clock stops while the host answers a call.
	CPU Duration `json:"cpu,omitempty" yaml:"cpu,omitempty"`
	// Memory is in bytes: an isolate's linear memory, a jail's memory.max.
	Memory Size `json:"memory,omitempty" yaml:"memory,omitempty"`
	// Output is in bytes, stdout and stderr (and log lines) together.
	Output Size `json:"output,omitempty" yaml:"output,omitempty"`
	// Requests is the number of outgoing requests of a run.
	Requests int `json:"requests,omitempty" yaml:"requests,omitempty"`
	// Calls is the number of host calls (bindings) of a run.
	Calls int `json:"calls,omitempty" yaml:"calls,omitempty"`
	// CPUs is the jail's processor quota, in processors (0.5 = half of one).
	CPUs float64 `json:"cpus,omitempty" yaml:"cpus,omitempty"`
	// Pids is the number of processes and threads in the jail.
	Pids int `json:"pids,omitempty" yaml:"pids,omitempty"`
	// OpenFiles is RLIMIT_NOFILE of each process in the jail.
	OpenFiles int `json:"open_files,omitempty" yaml:"open_files,omitempty"`
	// Disk is in bytes: the jail's files on the disk together.
	Disk Size `json:"disk,omitempty" yaml:"disk,omitempty"`
	// Inodes is the number of the jail's files, folders and links.
	Inodes int `json:"inodes,omitempty" yaml:"inodes,omitempty"`
	// IOBytes and IOOps are what a jail may read and, again, write of its disk in a
	// second; not set means as much as there is.
	IOBytes Size `json:"io_bytes,omitempty" yaml:"io_bytes,omitempty"`
	IOOps   int  `json:"io_ops,omitempty" yaml:"io_ops,omitempty"`
	// Bandwidth is what a jail may send and, again, receive in a second, in bytes;
	// not set means as much as there is.
	Bandwidth Size `json:"bandwidth,omitempty" yaml:"bandwidth,omitempty"`
	// Idle is how long a jail stays without a request.
	Idle Duration `json:"idle,omitempty" yaml:"idle,omitempty"`
	// Lifetime is how long a jail may live at most.
	Lifetime Duration `json:"lifetime,omitempty" yaml:"lifetime,omitempty"`
}

// A Rule grants one kind of outgoing request. What no rule grants is refused.
type Rule struct {
	// ID names the rule in decisions and records. When the file gives none it
	// is "profile/index".
	ID string `json:"id" yaml:"id,omitempty"`
	// Host is an exact name or "*.suffix" (one or more whole labels).
	Host string `json:"host" yaml:"host"`
	// Ports are granted; empty means the scheme's own (443, 80).
	Ports []uint16 `json:"ports,omitempty" yaml:"ports,omitempty"`
	// Scheme is "https" (the default), "http" or "tcp": a named service, such as
	// a database, whose bytes are carried unread. It has ports and no pattern.
	Scheme string `json:"scheme,omitempty" yaml:"scheme,omitempty"`
	// Methods are granted; empty means all. Needs interception over https.
	Methods []string `json:"methods,omitempty" yaml:"methods,omitempty"`
	// Paths are granted: exact, or a prefix when it ends in "*"; empty means
	// all. Needs interception over https.
	Paths []string `json:"paths,omitempty" yaml:"paths,omitempty"`
	// Addresses lets this very host resolve to addresses that are otherwise
	// refused (internal services, mirrors): only those inside these ranges.
	Addresses []netip.Prefix `json:"addresses,omitempty" yaml:"addresses,omitempty"`
	// Resolve gives the host's addresses in place of a DNS lookup.
	Resolve []netip.Addr `json:"resolve,omitempty" yaml:"resolve,omitempty"`
	// Credential is added to requests that this rule grants. https only.
	Credential *Injection `json:"credential,omitempty" yaml:"credential,omitempty"`
	// WebSocket lets requests under the rule become WebSockets, whose messages
	// are then carried unread.
	WebSocket bool `json:"websocket,omitempty" yaml:"websocket,omitempty"`
	// Cache is "packages" for a registry whose public downloads are kept for
	// everybody whom such a rule grants them; "" keeps nothing.
	Cache string `json:"cache,omitempty" yaml:"cache,omitempty"`
	// Limits are the rule's own, beside the tenant's; nil: none.
	Limits *EgressLimits `json:"limits,omitempty" yaml:"limits,omitempty"`
}

// CachePackages is the one kind of cache that a rule may name.
const CachePackages = "packages"

// Intercept reports whether requests under the rule must be read, not only
// tunnelled: a credential, a method or a path cannot be seen in a tunnel.
func (r *Rule) Intercept() bool {
	return r.Scheme == "http" || r.Credential != nil || r.Cache != "" || len(r.Methods) > 0 || len(r.Paths) > 0
}

// A Profile says what a tenant may do. The zero Profile may do nothing.
type Profile struct {
	Name    string        `json:"name"`
	Isolate *IsolateGrant `json:"isolate,omitempty"`
	Jail    *JailGrant    `json:"jail,omitempty"`
	Egress  []Rule        `json:"egress,omitempty"`
	// EgressLimits hold for everything under Egress together; complete when
	// there are rules.
	EgressLimits EgressLimits `json:"egress_limits,omitzero"`
}

// What IsolateGrant.Isolation may be.
const (
	IsolationShared = "shared"
	IsolationStrict = "strict"
)

// An IsolateGrant lets a tenant run code in isolates.
type IsolateGrant struct {
	Languages []string           `json:"languages" yaml:"languages"`
	Bindings  map[string]Binding `json:"bindings,omitempty" yaml:"bindings,omitempty"`
	// Fetch lets a run ask for outbound requests; Profile.Egress says where.
	Fetch bool `json:"fetch,omitempty" yaml:"fetch,omitempty"`
	// Isolation is "shared" (the default: worker processes run the code of
	// several tenants) or "strict" (each tenant has its own; the first run waits
	// for one to start).
	Isolation string `json:"isolation,omitempty" yaml:"isolation,omitempty"`
	Limits    Limits `json:"limits" yaml:"limits,omitempty"`
	// Record says which runs are kept for replay: "deterministic" (the
	// default), "all" or "off". A run that is recorded is deterministic.
	Record     string     `json:"record" yaml:"record,omitempty"`
	Recordings Recordings `json:"recordings" yaml:"recordings,omitempty"`
	// Functions bounds what the tenant may have deployed.
	Functions FunctionBounds `json:"functions" yaml:"functions,omitempty"`
}

// What JailGrant.Root may be.
const (
	RootReadOnly = "read-only"
	RootWritable = "writable"
)

// MayUse tells whether the tenant may have a jail of the template.
func (g *JailGrant) MayUse(template string) bool {
	return template == g.Template || slices.Contains(g.Templates, template)
}

// A JailGrant lets a tenant have a jail.
type JailGrant struct {
	// Template is "host" or an imported root file system's name: the tenant's
	// where a request names none.
	Template string `json:"template" yaml:"template,omitempty"`
	// Templates may be asked for, too.
	Templates []string `json:"templates,omitempty" yaml:"templates,omitempty"`
	// Root is "read-only" (the default) or "writable": what a jail of an imported
	// template writes to its root stays, with its workspace. Commands may then run
	// as user 0, without any capability.
	Root string `json:"root" yaml:"root,omitempty"`
	// Preview lets the tenant publish ports.
	Preview bool              `json:"preview,omitempty" yaml:"preview,omitempty"`
	Env     map[string]string `json:"env,omitempty" yaml:"env,omitempty"`
	Limits  Limits            `json:"limits" yaml:"limits,omitempty"`
}
