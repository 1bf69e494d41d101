package policy

import "errors"

// A Policy is a policy file that was understood completely. It does not change
// after Parse, so it may be used by many goroutines. The nil and the zero
// Policy grant nothing.
type Policy struct {
	// File is the name of the file.
	File string
}

// A Caller is a local process as the kernel describes it (SO_PEERCRED).
type Caller struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"` // supplementary
	Pid    int32    `json:"pid"`
	// Unit is the systemd unit of the pid, for the record only: a pid may have
	// been used again since.
	Unit string `json:"unit,omitempty"`
	// Admin says that the caller came over the admin socket.
	Admin bool `json:"admin,omitempty"`
}

// Load reads the policy file at path.
func Load(path string) (*Policy, error) { return nil, errors.ErrUnsupported }

// Parse reads a policy file's content; name is for messages.
func Parse(name string, b []byte) (*Policy, error) { return nil, errors.ErrUnsupported }

// For returns what the tenant may do: the entry with its exact name, else the
// longest matching prefix. Its error wraps ErrNoTenant when there is none.
func (p *Policy) For(tenant string) (*Profile, error) { return nil, ErrNoTenant }

// MayAct reports whether the caller may act for the tenant.
func (p *Policy) MayAct(c Caller, tenant string) bool { return false }

// MayAdmin reports whether the caller may use what is for administrators only.
func (p *Policy) MayAdmin(c Caller) bool { return false }

// ValidTenant says what is wrong with a tenant's name, if anything.
func ValidTenant(tenant string) error { return errors.ErrUnsupported }

// IsolateDefaults and JailDefaults are the limits where a profile sets none.
func IsolateDefaults() Limits { return Limits{} }

// JailDefaults are a jail's limits where a profile sets none.
func JailDefaults() Limits { return Limits{} }

// Lower returns l with the fields that req sets, none of them above l. path
// names req in errors, such as "limits".
func (l Limits) Lower(req Limits, path string) (Limits, error) { return l, errors.ErrUnsupported }

// A Step is what a request wants to run.
type Step struct {
	Language    string
	Needs       []string
	Environment string
}

// The two environments.
const (
	Isolate = "isolate"
	Jail    = "jail"
)

// Choose says where the step runs: an isolate unless it needs something of
// Linux.
func Choose(s Step, p *Profile) (string, error) { return "", errors.ErrUnsupported }
