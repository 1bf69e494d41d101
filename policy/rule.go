package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// rule reads one entry of "egress"; nil when it is not even a mapping.
func (r *reader) rule(n *yaml.Node, field, id string) *Rule {
	rule := &Rule{ID: id, Scheme: "https"}
	r.keys(n, field, map[string]keyFunc{
		"id":      r.word(&rule.ID, "a name", checkRuleID),
		"host":    r.word(&rule.Host, "a host's name or *.suffix", checkHostPattern),
		"scheme":  r.word(&rule.Scheme, "https, http or tcp", func(s string) error { return checkOneOf(s, schemes) }),
		"ports":   func(n *yaml.Node, path string) { r.ports(n, path, rule) },
		"methods": r.words(&rule.Methods, "a method such as GET", checkHTTPMethod),
		"paths":   r.words(&rule.Paths, "a path such as /v1/*", checkPath),
		"addresses": func(n *yaml.Node, path string) {
			r.list(n, path, func(v *yaml.Node, path string) { r.prefix(v, path, rule) })
		},
		"resolve": func(n *yaml.Node, path string) {
			r.list(n, path, func(v *yaml.Node, path string) { r.address(v, path, rule) })
		},
		"credential": func(n *yaml.Node, path string) { rule.Credential = r.injection(n, path) },
		"websocket":  r.boolean(&rule.WebSocket),
		"cache":      r.word(&rule.Cache, CachePackages, func(s string) error { return checkOneOf(s, []string{CachePackages}) }),
		"limits": func(n *yaml.Node, path string) {
			rule.Limits = &EgressLimits{}
			r.egressLimits(n, path, rule.Limits)
			*rule.Limits = rule.Limits.Filled(EgressLimits{})
		},
	})
	if n.Kind != yaml.MappingNode {
		return nil
	}
	if !hasKey(n, "host") {
		r.fail(n, field, "has no host; write host: NAME")
	}
	r.ruleWhole(n, field, rule)
	return rule
}

// ruleWhole checks what depends on several keys of a rule.
func (r *reader) ruleWhole(n *yaml.Node, field string, rule *Rule) {
	wild := strings.HasPrefix(rule.Host, "*.")
	if rule.Scheme == "tcp" {
		r.service(n, field, rule, wild)
	}
	if c := rule.Credential; c != nil {
		if rule.Scheme == "http" {
			r.fail(n, field+".credential", "would cross the network in clear text; only scheme: https may have one")
		}
		if wild {
			r.fail(n, field+".credential", "would go to every host under %s; write a rule with the exact host", rule.Host)
		}
	}
	if rule.Cache != "" {
		if rule.Scheme == "http" {
			r.fail(n, field+".cache", "is for https, where it is known who answered")
		}
		if rule.Credential != nil {
			r.fail(n, field+".cache", "is for what everybody may have; a rule with a credential keeps nothing")
		}
	}
	if wild && (len(rule.Addresses) > 0 || len(rule.Resolve) > 0) {
		r.fail(n, field+".host", "is a pattern; addresses and resolve are for one exact host")
	}
	if rule.WebSocket && rule.Credential != nil {
		r.fail(n, field+".websocket", "has messages that nobody reads, so the credential could come back in them; write a rule without a credential for it")
	}
	for _, a := range rule.Resolve {
		inside := slices.ContainsFunc(rule.Addresses, func(p netip.Prefix) bool { return p.Contains(a) })
		switch {
		case inside:
		case len(rule.Addresses) > 0:
			r.fail(n, field+".resolve", "%s is in none of the rule's addresses; the proxy would refuse it", a)
		case !a.IsGlobalUnicast() || a.IsPrivate():
			r.fail(n, field+".resolve", "%s is not a public address; add addresses: [%s]", a, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if len(rule.Ports) == 0 && rule.Scheme != "tcp" {
		rule.Ports = []uint16{map[string]uint16{"https": 443, "http": 80}[rule.Scheme]}
	}
}

// service checks a rule for a named TCP service, whose bytes nobody reads.
func (r *reader) service(n *yaml.Node, field string, rule *Rule, wild bool) {
	if wild {
		r.fail(n, field+".host", "is a pattern; a tcp rule names one host")
	}
	if len(rule.Ports) == 0 {
		r.fail(n, field, "has no ports; a tcp rule names each, such as ports: [5432]")
	}
	for _, p := range rule.Ports {
		if p == 53 {
			r.fail(n, field+".ports", "names 53, where the jail's own name server is")
		}
	}
	for _, key := range []string{"methods", "paths", "credential", "websocket", "cache"} {
		if hasKey(n, key) {
			r.fail(n, field+"."+key, "has no meaning for tcp, whose bytes are not read; remove it")
		}
	}
}

func (r *reader) ports(n *yaml.Node, field string, rule *Rule) {
	r.list(n, field, func(v *yaml.Node, path string) {
		const words = "a port from 1 to 65535"
		s, ok := r.text(v, path, words)
		if !ok {
			return
		}
		p, err := strconv.ParseUint(s, 10, 16)
		switch {
		case err != nil || p == 0 || !digits(s):
			r.fail(v, path, "is %s; want %s", quote(s), words)
		case slices.Contains(rule.Ports, uint16(p)):
			r.fail(v, path, "names %d a second time", p)
		default:
			rule.Ports = append(rule.Ports, uint16(p))
		}
	})
}

func (r *reader) prefix(n *yaml.Node, field string, rule *Rule) {
	s, ok := r.text(n, field, "a range such as 10.1.0.0/16")
	if !ok {
		return
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			r.fail(n, field, "is one address; write %s", netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
			return
		}
		r.fail(n, field, "%s is not a range of addresses; write it as 10.1.0.0/16", quote(s))
		return
	}
	least := 8
	if p.Addr().Is6() {
		least = 7 // fc00::/7, the private range
	}
	switch {
	case p.Addr().Is4In6():
		r.fail(n, field, "%s holds IPv4 addresses; write them as IPv4", quote(s))
	case p != p.Masked():
		r.fail(n, field, "%s has bits beyond its length; write %s", quote(s), p.Masked())
	case p.Bits() < least:
		r.fail(n, field, "%s is too wide; the widest range is /%d", quote(s), least)
	case slices.Contains(rule.Addresses, p):
		r.fail(n, field, "names %s a second time", p)
	default:
		rule.Addresses = append(rule.Addresses, p)
	}
}

func (r *reader) address(n *yaml.Node, field string, rule *Rule) {
	s, ok := r.text(n, field, "an address such as 10.1.2.3")
	if !ok {
		return
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil || a.Zone() != "":
		r.fail(n, field, "%s is not an address; write it as 10.1.2.3", quote(s))
	case a.Is4In6():
		r.fail(n, field, "%s is an IPv4 address; write %s", quote(s), a.Unmap())
	case a.IsUnspecified() || a.IsMulticast():
		r.fail(n, field, "%s is no host's address", quote(s))
	case slices.Contains(rule.Resolve, a):
		r.fail(n, field, "names %s a second time", a)
	default:
		rule.Resolve = append(rule.Resolve, a)
	}
}

var schemes = []string{"https", "http", "tcp"}

func checkOneOf(s string, allowed []string) error {
	if slices.Contains(allowed, s) {
		return nil
	}
	return fmt.Errorf("is %s; possible: %s", quote(s), strings.Join(allowed, ", "))
}
