package policy

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	maxTokenTimeout     = Duration(time.Minute)
	defaultTokenTimeout = Duration(10 * time.Second)
)

var (
	injections = []string{AsBearer, AsBasic, AsHeader, AsQuery, AsSigV4}
	awsForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	awsKeyForm = regexp.MustCompile(`^[A-Za-z0-9]{16,128}$`)
	startForm  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,32}$`)
	plainForm  = regexp.MustCompile(`^[\x21-\x7e]{1,256}$`)
)

func checkForm(form *regexp.Regexp, words string) func(string) error {
	return func(s string) error {
		if !form.MatchString(s) {
			return fmt.Errorf("%s is not %s", quote(s), words)
		}
		return nil
	}
}

// An injectionKey is a key that only some ways of sending have.
type injectionKey struct {
	key      string
	ways     []string // that take it
	required bool
	words    string
}

var injectionKeys = []injectionKey{
	{"username", []string{AsBasic}, true, "username"},
	{"field", []string{AsHeader}, true, "field, the header's name"},
	{"field", []string{AsQuery}, true, "field, the parameter's name"},
	{"region", []string{AsSigV4}, true, "region, such as eu-central-1"},
	{"service", []string{AsSigV4}, true, "service, such as s3"},
	{"access_key_id", []string{AsSigV4}, false, ""},
	{"payload", []string{AsSigV4}, false, ""},
}

// injection reads a rule's "credential".
func (r *reader) injection(n *yaml.Node, field string) *Injection {
	c := &Injection{}
	r.keys(n, field, map[string]keyFunc{
		"name":          r.word(&c.Name, "the credential's name", checkCredentialName),
		"as":            r.word(&c.As, strings.Join(injections, ", "), func(s string) error { return checkOneOf(s, injections) }),
		"username":      r.word(&c.Username, "a user name", checkUsername),
		"field":         r.word(&c.Field, "a header's or parameter's name", checkToken),
		"region":        r.word(&c.Region, "a region", checkForm(awsForm, "a region such as eu-central-1")),
		"service":       r.word(&c.Service, "a service", checkForm(awsForm, "a service's signing name such as s3")),
		"access_key_id": r.word(&c.AccessKeyID, "an access key's id", checkForm(awsKeyForm, "an access key's id: 16 to 128 letters and digits")),
		"payload":       r.word(&c.Payload, "signed or unsigned", func(s string) error { return checkOneOf(s, []string{"signed", "unsigned"}) }),
		"placeholder":   r.word(&c.Placeholder, "a variable's name", checkEnvName),
		"placeholder_prefix": r.word(&c.PlaceholderPrefix, "how the value begins",
			checkForm(startForm, "a beginning: 1 to 32 letters, digits, . _ -")),
	})
	if n.Kind != yaml.MappingNode {
		return c
	}
	for _, key := range []string{"name", "as"} {
		if !hasKey(n, key) {
			r.fail(n, field, "has no %s", key)
		}
	}
	r.injectionWhole(n, field, c)
	return c
}

// injectionWhole checks what depends on how the credential is sent.
func (r *reader) injectionWhole(n *yaml.Node, field string, c *Injection) {
	taken := map[string]bool{}
	for _, k := range injectionKeys {
		if !slices.Contains(k.ways, c.As) {
			continue
		}
		taken[k.key] = true
		if k.required && !hasKey(n, k.key) {
			r.fail(n, field, "is sent as %s and needs %s", c.As, k.words)
		}
	}
	told := map[string]bool{}
	for _, k := range injectionKeys {
		if c.As != "" && hasKey(n, k.key) && !taken[k.key] && !told[k.key] {
			told[k.key] = true
			r.fail(n, field, "is sent as %s, which has no %s; remove it", c.As, k.key)
		}
	}
	if c.As == AsHeader && c.Field != "" {
		if err := checkInjectedHeader(c.Field); err != nil {
			r.fail(n, field+".field", "%v", err)
		}
	}
	if hasKey(n, "placeholder_prefix") && !hasKey(n, "placeholder") {
		r.fail(n, field, "has a placeholder_prefix and no placeholder; name the variable, or remove it")
	}
}

// credential reads one entry of "credentials".
func (r *reader) credential(k, v *yaml.Node, field string, p *Policy) {
	if err := checkCredentialName(k.Value); err != nil {
		r.fail(k, field, "%v", err)
	}
	c := &Credential{Name: k.Value}
	r.keys(v, field, map[string]keyFunc{
		"command": func(n *yaml.Node, path string) { r.command(n, path, c) },
		"socket":  r.word(&c.Socket, "a Unix socket's path", checkAbsolute),
		"timeout": func(n *yaml.Node, path string) { r.tokenTimeout(n, path, c) },
		"oauth2":  func(n *yaml.Node, path string) { c.OAuth2 = r.oauth2(n, path) },
		"budget":  func(n *yaml.Node, path string) { c.Budget = r.budget(n, path) },
	})
	if v.Kind != yaml.MappingNode {
		return
	}
	sources := 0
	for _, key := range []string{"command", "socket", "oauth2"} {
		if hasKey(v, key) {
			sources++
		}
	}
	switch {
	case sources > 1:
		r.fail(v, field, "has %d sources; give at most one of command, socket, oauth2", sources)
	case hasKey(v, "timeout") && !hasKey(v, "command") && !hasKey(v, "socket"):
		r.fail(v, field+".timeout", "is for command and socket; remove it")
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTokenTimeout
	}
	p.credentials[k.Value] = c
}

func checkAbsolute(s string) error {
	if !filepath.IsAbs(s) || filepath.Clean(s) != s || len(s) > 4096 {
		return fmt.Errorf("%s is not an absolute path without detours", quote(s))
	}
	return nil
}

func (r *reader) command(n *yaml.Node, field string, c *Credential) {
	r.list(n, field, func(v *yaml.Node, path string) {
		check := func(s string) error {
			if len(s) > 4096 {
				return fmt.Errorf("is longer than 4096 bytes")
			}
			return nil
		}
		if len(c.Command) == 0 {
			check = checkAbsolute
		}
		before := len(r.errs)
		var s string
		if r.word(&s, "a program's absolute path, then its arguments", check)(v, path); len(r.errs) == before {
			c.Command = append(c.Command, s)
		}
	})
}

func (r *reader) tokenTimeout(n *yaml.Node, field string, c *Credential) {
	s, ok := r.text(n, field, "a duration such as 10s")
	if !ok {
		return
	}
	d, err := ParseDuration(s)
	switch {
	case err != nil:
		r.fail(n, field, "%v", err)
	case d <= 0 || d > maxTokenTimeout:
		r.fail(n, field, "is %s; possible: up to %s", d, maxTokenTimeout)
	default:
		c.Timeout = d
	}
}

func (r *reader) oauth2(n *yaml.Node, field string) *OAuth2 {
	o, rule := &OAuth2{}, &Rule{}
	r.keys(n, field, map[string]keyFunc{
		"token_url": r.word(&o.TokenURL, "an https URL", checkTokenURL),
		"client_id": r.word(&o.ClientID, "the client's id", checkForm(plainForm, "a client's id: 1 to 256 visible ASCII characters")),
		"scopes":    r.words(&o.Scopes, "a scope", checkForm(plainForm, "a scope")),
		"audience":  r.word(&o.Audience, "an audience", checkForm(plainForm, "an audience")),
		"auth":      r.word(&o.Auth, "header or body", func(s string) error { return checkOneOf(s, []string{"header", "body"}) }),
		"addresses": func(n *yaml.Node, path string) {
			r.list(n, path, func(v *yaml.Node, path string) { r.prefix(v, path, rule) })
		},
		"resolve": func(n *yaml.Node, path string) {
			r.list(n, path, func(v *yaml.Node, path string) { r.address(v, path, rule) })
		},
	})
	if n.Kind != yaml.MappingNode {
		return o
	}
	for _, key := range []string{"token_url", "client_id"} {
		if !hasKey(n, key) {
			r.fail(n, field, "has no %s", key)
		}
	}
	r.ruleWhole(n, field, rule)
	o.Addresses, o.Resolve = rule.Addresses, rule.Resolve
	return o
}

func checkTokenURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || len(s) > 1024 {
		return fmt.Errorf("%s is not an https URL without user, query and fragment", quote(s))
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%s has no valid port", quote(s))
		}
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return nil
	}
	if strings.HasPrefix(u.Hostname(), "*") {
		return fmt.Errorf("%s has no exact host", quote(s))
	}
	return checkHostPattern(u.Hostname())
}

func (r *reader) budget(n *yaml.Node, field string) *Budget {
	b := &Budget{}
	count := func(dst *int) keyFunc {
		return func(n *yaml.Node, path string) {
			const words = "a number from 1 to 1000000000"
			s, ok := r.text(n, path, words)
			if !ok {
				return
			}
			v, err := strconv.Atoi(s)
			if err != nil || v < 1 || v > 1e9 || !digits(s) {
				r.fail(n, path, "is %s; want %s", quote(s), words)
				return
			}
			*dst = v
		}
	}
	r.keys(n, field, map[string]keyFunc{
		"requests_per_minute": count(&b.RequestsPerMinute),
		"requests_per_day":    count(&b.RequestsPerDay),
		"bytes_per_day": func(n *yaml.Node, path string) {
			s, ok := r.text(n, path, "a size such as 10MiB")
			if !ok {
				return
			}
			v, err := ParseSize(s)
			switch {
			case err != nil:
				r.fail(n, path, "%v", err)
			case v < 1:
				r.fail(n, path, "is 0; leave the credential out of the rules to grant nothing")
			default:
				b.BytesPerDay = v
			}
		},
	})
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		r.fail(n, field, "bounds nothing; write requests_per_minute, requests_per_day or bytes_per_day")
	}
	return b
}

// linkCredentials gives each use of a credential what its entry says, and
// checks what only both together show.
func (r *reader) linkCredentials(root *yaml.Node, p *Policy) {
	if root.Kind != yaml.MappingNode {
		return
	}
	for name, uses := range p.CredentialUses() {
		entry := p.credentials[name]
		for _, u := range uses {
			in := u.Injection
			in.Source, in.SourceID = entry.source(), entry.sourceID()
			if entry != nil {
				in.OAuth2 = entry.OAuth2
			}
			if in.As == AsSigV4 && in.Source == FromOAuth2 {
				at := join("profiles", u.Profile) + ".egress"
				r.fail(r.at(root, join("credentials", name)), at, "sends %s, a token of OAuth2, as aws-sigv4 in the rule %s; AWS keys come from the store, a command or a socket", name, u.Rule)
			}
		}
	}
	for name, profile := range p.profiles {
		r.placeholders(root, name, profile)
	}
}

// at finds the place of a value that was read, or of the first one beneath it.
func (r *reader) at(root *yaml.Node, field string) *yaml.Node {
	for _, o := range r.origins {
		if o.field == field || strings.HasPrefix(o.field, field+".") {
			return &yaml.Node{Line: o.line, Column: 1}
		}
	}
	return root
}

// placeholders keeps one variable from standing for two credentials, or for
// one and the operator's own value.
func (r *reader) placeholders(root *yaml.Node, name string, profile *Profile) {
	seen := map[string]Injection{}
	for i, rule := range profile.Egress {
		c := rule.Credential
		if c == nil || c.Placeholder == "" {
			continue
		}
		field := fmt.Sprintf("%s.egress[%d].credential.placeholder", join("profiles", name), i)
		root := r.at(root, field)
		if other, ok := seen[c.Placeholder]; ok && (other.Name != c.Name || other.PlaceholderPrefix != c.PlaceholderPrefix) {
			r.fail(root, field, "%s stands for %s and for %s; give each its own variable", c.Placeholder, other.Name, c.Name)
		}
		seen[c.Placeholder] = *c
		if profile.Jail != nil {
			if _, ok := profile.Jail.Env[c.Placeholder]; ok {
				r.fail(root, field, "%s is set by jail.env, too; remove one", c.Placeholder)
			}
		}
	}
}
