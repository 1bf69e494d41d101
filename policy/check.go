package policy

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

var (
	nameForm       = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
	profileForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	ruleIDForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$`)
	credentialForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	bindingForm    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,31}$`)
	methodForm     = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,63}$`)
	envForm        = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	prefixForm     = regexp.MustCompile(`^([a-z0-9][a-z0-9._-]{0,61})?\*$`)
	usernameForm   = regexp.MustCompile(`^[\x21-\x39\x3b-\x7e]{1,128}$`) // no colon
)

// checkPattern accepts a tenant's name, a prefix with a star, or "*".
func checkPattern(s string) error {
	if strings.Contains(s, "*") {
		if !prefixForm.MatchString(s) {
			return fmt.Errorf("%s is not a prefix; a star stands at the end only, after a start that a tenant's name can have", quote(s))
		}
		return nil
	}
	if err := ValidTenant(s); err != nil {
		return fmt.Errorf("%s is not a tenant's name: %s", quote(s), tenantForm)
	}
	return nil
}

func checkName(s string) error {
	if !nameForm.MatchString(s) {
		return fmt.Errorf("%s is not a name here: %s", quote(s), tenantForm)
	}
	return nil
}

// checkProfileName has no dot, so that a profile's name is one part of a path.
func checkProfileName(s string) error {
	if !profileForm.MatchString(s) {
		return fmt.Errorf("%s is not a profile's name: 1 to 63 of a-z 0-9 _ -, starting with a letter or digit", quote(s))
	}
	return nil
}

func checkRuleID(s string) error {
	if !ruleIDForm.MatchString(s) {
		return fmt.Errorf("%s is not an id: 1 to 128 letters, digits, . _ / -", quote(s))
	}
	return nil
}

func checkCredentialName(s string) error {
	if !credentialForm.MatchString(s) {
		return fmt.Errorf("%s is not a credential's name: 1 to 64 letters, digits, . _ -", quote(s))
	}
	return nil
}

func checkUsername(s string) error {
	if !usernameForm.MatchString(s) {
		return fmt.Errorf("%s is not a user name: 1 to 128 visible ASCII characters without a colon", quote(s))
	}
	return nil
}

func checkEnvName(s string) error {
	if !envForm.MatchString(s) {
		return fmt.Errorf("%s is not a variable's name: letters, digits and _, not starting with a digit", quote(s))
	}
	return nil
}

// checkBindingName also keeps names apart that differ in case only, because
// the code sees them in upper case.
func checkBindingName(s string, all map[string]Binding) error {
	if !bindingForm.MatchString(s) {
		return fmt.Errorf("%s is not a binding's name: 1 to 32 letters, digits and _, starting with a letter", quote(s))
	}
	if strings.EqualFold(s, "fetch") {
		return errors.New("fetch is not a binding; write fetch: true beside bindings")
	}
	for other := range all {
		if strings.EqualFold(s, other) {
			return fmt.Errorf("differs from %s in case only; the code sees both as %s", other, strings.ToUpper(s))
		}
	}
	return nil
}

// checkMethodName keeps out "then", which would make the binding awaitable, and
// what every JavaScript object has anyway.
func checkMethodName(s string) error {
	reserved := []string{"then", "constructor", "toString", "valueOf", "hasOwnProperty", "toJSON"}
	if !methodForm.MatchString(s) || slices.Contains(reserved, s) {
		return fmt.Errorf("%s is not a method's name: 1 to 64 letters, digits and _, starting with a letter, and none of %s",
			quote(s), strings.Join(reserved, ", "))
	}
	return nil
}

func checkToken(s string) error {
	if len(s) > 128 || !httpguts.ValidHeaderFieldName(s) {
		return fmt.Errorf("%s is not a name: 1 to 128 letters, digits and !#$%%&'*+-.^_`|~", quote(s))
	}
	return nil
}

// checkInjectedHeader keeps a credential out of the headers that frame or route
// a request.
func checkInjectedHeader(s string) error {
	routing := []string{
		"Connection", "Content-Length", "Content-Type", "Expect", "Forwarded", "Host", "Keep-Alive", "Te",
		"Trailer", "Transfer-Encoding", "Upgrade", "Via",
	}
	name := http.CanonicalHeaderKey(s)
	if slices.Contains(routing, name) || strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "X-Forwarded-") {
		return fmt.Errorf("%s frames or routes the request and cannot carry a credential", name)
	}
	return nil
}

func checkHTTPMethod(s string) error {
	upper := strings.ToUpper(s)
	switch {
	case len(s) > 32 || !httpguts.ValidHeaderFieldName(s):
		return fmt.Errorf("%s is not a method; write GET, POST …", quote(s))
	case upper == "CONNECT" || upper == "TRACE":
		return fmt.Errorf("%s cannot be granted", upper)
	case s != upper:
		return fmt.Errorf("%s must be in upper case; write %s", quote(s), upper)
	}
	return nil
}

// checkPath accepts a path in the one form in which the proxy matches it, so
// that a rule never means something else than it says. A star may end it.
func checkPath(s string) error {
	path := strings.TrimSuffix(s, "*")
	switch {
	case !strings.HasPrefix(path, "/"):
		return fmt.Errorf("%s must start with /", quote(s))
	case len(s) > 1024:
		return errors.New("is longer than 1024 characters")
	case strings.Contains(path, "*"):
		return fmt.Errorf("%s: a star stands at the end only", quote(s))
	case strings.ContainsAny(path, "?#"):
		return fmt.Errorf("%s: a rule's path has no query and no fragment", quote(s))
	case strings.Contains(path, "//"):
		return fmt.Errorf("%s holds //, which the proxy refuses; write one /", quote(s))
	}
	for _, segment := range strings.Split(path, "/") {
		if segment == "." || segment == ".." {
			return fmt.Errorf("%s holds the segment %q; write the path without it", quote(s), segment)
		}
	}
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '%':
			if err := checkEscape(path[i:]); err != nil {
				return err
			}
			i += 2
		case c <= ' ' || c >= 0x7f || strings.IndexByte(`"<>\^{|}`+"`", c) >= 0:
			return fmt.Errorf("%s holds the character %q; write it as %%%02X", quote(s), c, c)
		}
	}
	return nil
}

// checkEscape accepts %XX in upper case for bytes that must be escaped; an
// escaped slash, dot or backslash would let one path look like another.
func checkEscape(s string) error {
	if len(s) < 3 || !upperHex(s[1]) || !upperHex(s[2]) {
		return errors.New("holds a % that two upper-case hexadecimal digits do not follow")
	}
	c := unhex(s[1])<<4 | unhex(s[2])
	unreserved := lowerAlnum(c|0x20) || strings.IndexByte("-._~", c) >= 0
	switch {
	case c == '/' || c == '\\' || c < 0x20 || c == 0x7f:
		return fmt.Errorf("holds %s, which the proxy refuses", s[:3])
	case unreserved:
		return fmt.Errorf("holds %s; write %q itself", s[:3], c)
	}
	return nil
}

func upperHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'A' + 10
}
