package policy

import (
	"fmt"
	"strings"
)

// A Policy is a policy file that was understood completely. It does not change
// after Parse, so it may be used by many goroutines. The nil and the zero
// Policy grant nothing.
type Policy struct {
	// File is the name of the file.
	File string

	callers     []callerRule
	profiles    map[string]*Profile
	exact       map[string]string // tenant → profile
	prefixes    []prefixRule      // longest prefix first
	credentials map[string]*Credential
	origins     []origin // every value of the file, in its order
}

// A callerRule is one entry of "callers", its user or group resolved.
type callerRule struct {
	id      uint32
	group   bool // id is a gid
	tenants []string
	admin   bool
}

// A prefixRule gives tenants whose name starts with prefix a profile.
type prefixRule struct {
	prefix, profile string
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
	// Admin says that the caller came over the admin socket, whose file
	// permissions decide who that can be.
	Admin bool `json:"admin,omitempty"`
}

// ValidTenant says what is wrong with a tenant's name, if anything. A valid
// name is safe as a file name.
func ValidTenant(tenant string) error {
	const most = 63
	switch {
	case tenant == "":
		return &FieldError{Field: "tenant", Message: "is empty", Allowed: tenantForm}
	case len(tenant) > most:
		return &FieldError{Field: "tenant", Message: fmt.Sprintf("has %d characters", len(tenant)), Allowed: tenantForm}
	}
	for i := range len(tenant) {
		c := tenant[i]
		inner := c == '.' || c == '_' || c == '-'
		if !lowerAlnum(c) && !inner {
			return &FieldError{Field: "tenant", Message: quote(tenant) + " holds a character that is not allowed", Allowed: tenantForm}
		}
		if inner && (i == 0 || i == len(tenant)-1) {
			return &FieldError{Field: "tenant", Message: quote(tenant) + " must start and end with a letter or digit", Allowed: tenantForm}
		}
	}
	return nil
}

const tenantForm = "1 to 63 of a-z 0-9 . _ -, starting and ending with a letter or digit"

func lowerAlnum(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// For returns what the tenant may do: the entry with its exact name, else the
// longest matching prefix. The error wraps ErrNoTenant when there is none. The
// Profile is shared and must not be changed; its limits are complete.
func (p *Policy) For(tenant string) (*Profile, error) {
	name, _, ok := p.entry(tenant)
	if !ok {
		return nil, &TenantError{tenant}
	}
	return p.profiles[name], nil
}

// entry finds the profile's name and the key of the tenant's entry.
func (p *Policy) entry(tenant string) (profile, key string, ok bool) {
	if p == nil || ValidTenant(tenant) != nil {
		return "", "", false
	}
	if name, ok := p.exact[tenant]; ok {
		return name, tenant, true
	}
	for _, r := range p.prefixes {
		if strings.HasPrefix(tenant, r.prefix) {
			return r.profile, r.prefix + "*", true
		}
	}
	return "", "", false
}

// MayAct reports whether the caller may act for the tenant. Callers on the
// admin socket may act for every tenant; what the tenant itself may do is
// another question (For).
func (p *Policy) MayAct(c Caller, tenant string) bool {
	if ValidTenant(tenant) != nil {
		return false
	}
	if c.Admin {
		return true
	}
	return p.anyCaller(c, func(r callerRule) bool {
		for _, pattern := range r.tenants {
			prefix, wild := strings.CutSuffix(pattern, "*")
			if pattern == tenant || wild && strings.HasPrefix(tenant, prefix) {
				return true
			}
		}
		return false
	})
}

// MayAdmin reports whether the caller may use what is for administrators only.
func (p *Policy) MayAdmin(c Caller) bool {
	return c.Admin || p.anyCaller(c, func(r callerRule) bool { return r.admin })
}

// MayConnect reports whether any entry names the caller at all.
func (p *Policy) MayConnect(c Caller) bool {
	return c.Admin || p.anyCaller(c, func(callerRule) bool { return true })
}

func (p *Policy) anyCaller(c Caller, accept func(callerRule) bool) bool {
	if p == nil {
		return false
	}
	for _, r := range p.callers {
		if r.names(c) && accept(r) {
			return true
		}
	}
	return false
}

func (r callerRule) names(c Caller) bool {
	if !r.group {
		return c.UID == r.id
	}
	if c.GID == r.id {
		return true
	}
	for _, g := range c.Groups {
		if g == r.id {
			return true
		}
	}
	return false
}
