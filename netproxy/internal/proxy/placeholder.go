package proxy

import (
	"encoding/base64"
	"net/url"
	"strings"

	"sandboxd/netproxy/internal/control"
	"sandboxd/policy"
	"sandboxd/secrets"
)

// placeholder is the text that stands for a credential in the tenant's
// sandboxes, "" if there is none.
func (s *Server) placeholder(tenant string, in *policy.Injection) string {
	return control.Placeholder(s.placeholderKey, tenant, in)
}

// stray finds a placeholder that a request would carry to where its credential
// does not go: to another host or under another rule, or in another place. It is
// worth nothing there, but whoever sent it meant something else. What a body
// holds is not looked at, and stays as it is.
func (c *session) stray(g *rule, req *request) *policy.Injection {
	rules := c.t.rules.Load()
	if rules == nil || !rules.placeholders {
		return nil
	}
	for _, r := range rules.rules {
		text := ""
		if r.Credential != nil {
			text = c.s.placeholder(c.t.name, r.Credential)
		}
		if text == "" || !mentions(req, text, "", false) {
			continue
		}
		in := g.Credential
		if in == nil || in.Name != r.Credential.Name || c.s.placeholder(c.t.name, in) != text {
			return r.Credential
		}
		if mentions(req, text, secrets.Field(in), in.As == policy.AsQuery) {
			return in
		}
	}
	return nil
}

// mentions reports whether path, query or header hold the text, besides the
// field and, where the credential is a parameter, the query.
func mentions(req *request, text, besides string, query bool) bool {
	if strings.Contains(req.path, text) || !query && strings.Contains(req.query, text) {
		return true
	}
	for _, f := range req.head.Fields {
		if besides != "" && strings.EqualFold(f.Name, besides) {
			continue
		}
		if strings.Contains(f.Value, text) || strings.Contains(decodedBasic(f.Value), text) {
			return true
		}
	}
	return false
}

// decodedBasic is the name and password of a Basic Authorization.
func decodedBasic(value string) string {
	scheme, rest, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "basic") {
		return ""
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	if err != nil {
		return ""
	}
	if plain, err := url.PathUnescape(string(b)); err == nil {
		return plain
	}
	return string(b)
}

// strayPlaceholder is the refusal.
func strayPlaceholder(req *request, in *policy.Injection) *refusal {
	return &refusal{status: 403, code: "denied", reason: "placeholder_misplaced", host: req.host.Name,
		message: "the request carries the placeholder of " + in.Placeholder + " to where its credential does not go; it is worth nothing there",
		hint:    "send it only to the host that " + in.Placeholder + " is for, where its key belongs"}
}
