package policy

import (
	"fmt"
	"strings"
)

// A Grant is one value of a tenant's effective policy and where it comes from.
type Grant struct {
	// Field is the path in the file, such as "profiles.skill.isolate.fetch".
	Field string `json:"field"`
	Value string `json:"value"`
	// File and Line say who granted it; a built-in default has neither.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

// Explain lists everything that applies to the tenant, in the file's order,
// with built-in defaults after what the file says of the same part.
func (p *Policy) Explain(tenant string) ([]Grant, error) {
	profile, key, ok := p.entry(tenant)
	if !ok {
		return nil, fmt.Errorf("tenant %s: %w", quote(tenant), ErrNoTenant)
	}
	entry, prefix := join("tenants", key)+".profile", join("profiles", profile)+"."
	var grants []Grant
	for _, o := range p.origins {
		if o.field != entry && !strings.HasPrefix(o.field, prefix) {
			continue
		}
		g := Grant{Field: o.field, Value: o.value}
		if o.line > 0 {
			g.File, g.Line = p.File, o.line
		}
		grants = append(grants, g)
	}
	return grants, nil
}
