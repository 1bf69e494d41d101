package policy

import (
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
		return nil, &TenantError{tenant}
	}
	entry, prefix := join("tenants", key)+".profile", join("profiles", profile)+"."
	of := map[string]bool{} // what the profile's credentials are
	for _, rule := range p.profiles[profile].Egress {
		if rule.Credential != nil {
			of[join("credentials", rule.Credential.Name)+"."] = true
		}
	}
	var grants []Grant
	for _, o := range p.origins {
		if o.field != entry && !strings.HasPrefix(o.field, prefix) && !hasAnyPrefix(o.field, of) {
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

func hasAnyPrefix(s string, prefixes map[string]bool) bool {
	for p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
