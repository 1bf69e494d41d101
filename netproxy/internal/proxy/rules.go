package proxy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"sandboxd/netproxy/internal/names"
	"sandboxd/policy"
	"sandboxd/secrets"
)

// A rule is a policy rule ready to match. Its identity lives on through a
// change of the rules that leaves it as it is, and with it its connections.
type rule struct {
	policy.Rule
	source policy.Rule // as it was given
	host   string      // canonical, or "*." and a canonical suffix
	pool   *pool
	meter  *meter
}

// A ruleset is everything a tenant may reach. It does not change; a new one
// replaces it.
type ruleset struct {
	rules []*rule
	held  sync.Map // canonical host → *holders
	// credentials and placeholders say whether any rule has one.
	credentials, placeholders bool
}

// compile checks the rules. One that cannot be understood spoils all: a rule
// that is left out might be the one that narrows another.
func compile(list []policy.Rule, old *ruleset, pools func(*rule) *pool) (*ruleset, error) {
	set := &ruleset{}
	for i := range list {
		if kept := old.same(&list[i]); kept != nil {
			set.rules = append(set.rules, kept)
			continue
		}
		r, err := newRule(&list[i])
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", list[i].ID, err)
		}
		r.pool = pools(r)
		r.meter = newMeter(r.ID, limitsOf(r), old.meterOf(r.ID))
		set.rules = append(set.rules, r)
	}
	for _, r := range set.rules {
		set.credentials = set.credentials || r.Credential != nil
		set.placeholders = set.placeholders || r.Credential != nil && r.Credential.Placeholder != ""
	}
	return set, nil
}

func (s *ruleset) same(p *policy.Rule) *rule {
	if s == nil {
		return nil
	}
	for _, r := range s.rules {
		if reflect.DeepEqual(&r.source, p) {
			return r
		}
	}
	return nil
}

// meterOf is the meter of the rule with that id.
func (s *ruleset) meterOf(id string) *meter {
	if s == nil {
		return nil
	}
	for _, r := range s.rules {
		if r.ID == id {
			return r.meter
		}
	}
	return nil
}

func limitsOf(r *rule) policy.EgressLimits {
	if r.Limits == nil {
		return policy.EgressLimits{}
	}
	return r.Limits.Filled(policy.EgressLimits{})
}

func newRule(p *policy.Rule) (*rule, error) {
	r := &rule{Rule: *p, source: *p}
	switch r.Scheme {
	case "":
		r.Scheme = "https"
	case "https", "http":
	case "tcp":
		if len(r.Ports) == 0 || strings.HasPrefix(r.Host, "*.") {
			return nil, fmt.Errorf("a tcp rule needs ports and one host")
		}
	default:
		return nil, fmt.Errorf("scheme %q", r.Scheme)
	}
	suffix, wild := strings.CutPrefix(r.Host, "*.")
	h, err := names.Canonical(suffix)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	if r.host = h.Name; wild {
		if h.IP.IsValid() {
			return nil, fmt.Errorf("host: a wildcard needs a name")
		}
		r.host = "*." + h.Name
	}
	if r.Credential != nil {
		if r.Scheme != "https" {
			return nil, fmt.Errorf("a credential needs https") // step 16
		}
		if err := secrets.Check(r.Credential); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *rule) takesPort(port uint16) bool {
	if len(r.Ports) == 0 {
		return port == defaultPort(r.Scheme)
	}
	return slices.Contains(r.Ports, port)
}

func defaultPort(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

func (r *rule) takesMethod(method string) bool {
	return len(r.Methods) == 0 || slices.Contains(r.Methods, method)
}

func (r *rule) takesPath(path string) bool {
	if len(r.Paths) == 0 {
		return true
	}
	for _, p := range r.Paths {
		if prefix, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(path, prefix) || p == path {
			return true
		}
	}
	return false
}

// A miss says how close the rules came, in the order of the words below; the
// closest is what a person wants to hear.
type miss int

const (
	missHost miss = iota
	missScheme
	missPort
	missMethod
	missPath
)

var missWords = [...]string{"no_rule", "scheme_denied", "port_denied", "method_denied", "path_denied"}

// endpoint calls f for the rules that grant scheme, host and port (step 6),
// until f returns true; closest is how close the others came.
func (s *ruleset) endpoint(scheme string, h names.Host, port uint16, f func(*rule) bool) (closest miss) {
	if s == nil {
		return missHost
	}
	for _, r := range s.rules {
		switch {
		case !h.Match(r.host):
		case r.Scheme != scheme:
			closest = max(closest, missScheme)
		case !r.takesPort(port):
			closest = max(closest, missPort)
		default:
			if f(r) {
				return closest
			}
		}
	}
	return closest
}

// tunnel decides on a connection of which only host and port are known.
// intercept says that requests must be read one by one: some rule for this
// endpoint looks at them, or gives them a credential.
func (s *ruleset) tunnel(scheme string, h names.Host, port uint16) (first *rule, intercept bool, why string) {
	closest := s.endpoint(scheme, h, port, func(r *rule) bool {
		if first == nil {
			first = r
		}
		intercept = intercept || r.Intercept()
		return false
	})
	// What a host is given under one rule may come back under another.
	intercept = intercept || scheme == "https" && s.holdersOf(h) != nil
	if first == nil {
		return nil, false, missWords[closest]
	}
	return first, intercept, ""
}

// named reports whether host and port are a named service.
func (s *ruleset) named(h names.Host, port uint16) (yes bool) {
	s.endpoint("tcp", h, port, func(*rule) bool {
		yes = true
		return true
	})
	return yes
}

// request decides on one request (steps 6, 10, 14): the first rule that
// grants all of it.
func (s *ruleset) request(scheme string, h names.Host, port uint16, method, path string) (granted *rule, why string) {
	best := miss(0)
	closest := s.endpoint(scheme, h, port, func(r *rule) bool {
		switch {
		case !r.takesMethod(method):
			best = max(best, missMethod)
		case !r.takesPath(path):
			best = max(best, missPath)
		default:
			granted = r
		}
		return granted != nil
	})
	if granted == nil {
		return nil, missWords[max(best, closest)]
	}
	return granted, ""
}

// narrow reports whether some rule of the endpoint looks at paths. Only then
// must a path have one spelling.
func (s *ruleset) narrow(scheme string, h names.Host, port uint16) (paths bool) {
	s.endpoint(scheme, h, port, func(r *rule) bool {
		paths = paths || len(r.Paths) > 0
		return paths
	})
	return paths
}

// knows reports whether some rule grants the name on whatever port: DNS
// answers only for those.
func (s *ruleset) knows(h names.Host) *rule {
	if s == nil {
		return nil
	}
	for _, r := range s.rules {
		if h.Match(r.host) {
			return r
		}
	}
	return nil
}

// wanted is the rule to ask the operator for, as it stands in a policy file.
func wanted(scheme string, h names.Host, port uint16) string {
	host := h.Name
	if h.IP.Is6() {
		host = "'[" + host + "]'"
	}
	s := fmt.Sprintf("{host: %s, ports: [%d]", host, port)
	if scheme != "https" {
		s += ", scheme: " + scheme
	}
	return s + "}"
}
