package names

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// A Host is a canonical host: a name of lower-case ASCII labels without a
// trailing dot, or an IP address.
type Host struct {
	// Name is the canonical text; for an address, its own canonical text
	// (without brackets).
	Name string
	// IP is set when the host is an address literal.
	IP netip.Addr
}

// ErrHost says that a host is not in a form that can be matched. Errors of
// Canonical wrap it.
var ErrHost = errors.New("not a valid host name")

// errRadix is for numbers that resolvers read as addresses.
var errRadix = fmt.Errorf("%w: write an address in its canonical form", ErrHost)

// lookup is the IDNA profile for looking names up, strict about characters and
// lengths. CheckHyphens is on, so "xn--" labels must decode and round-trip.
var lookup = idna.New(
	idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(),
	idna.StrictDomainName(true), idna.VerifyDNSLength(true), idna.ValidateLabels(true),
	idna.CheckHyphens(true), idna.CheckJoiners(true),
)

// maxName is the longest DNS name in text form.
const maxName = 253

// Canonical brings a host to its one form (decision procedure, step 5). IPv6
// addresses must be in brackets.
func Canonical(s string) (Host, error) {
	if s == "" || len(s) > 4*maxName {
		return Host{}, ErrHost
	}
	if s[0] == '[' {
		return canonicalIPv6(s)
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x80 && !isLDH(c) && c != '.' {
			return Host{}, fmt.Errorf("%w: character %q", ErrHost, c)
		}
	}
	name, ok := lower(s)
	if !ok {
		var err error
		if name, err = lookup.ToASCII(s); err != nil || !utf8.ValidString(s) {
			return Host{}, ErrHost
		}
		// What came out must stay what it is, or the next reader sees another.
		if again, err := lookup.ToASCII(name); err != nil || again != name {
			return Host{}, ErrHost
		}
	}
	name = strings.TrimSuffix(name, ".")
	if err := checkLabels(name); err != nil {
		return Host{}, err
	}
	if numeric(name[strings.LastIndexByte(name, '.')+1:]) {
		// Every reader that knows inet_aton would take this for an address.
		ip, err := netip.ParseAddr(name)
		if err != nil || ip.String() != name {
			return Host{}, errRadix
		}
		return Host{Name: name, IP: ip}, nil
	}
	return Host{Name: name}, nil
}

// lower is the fast path: plain ASCII without an A-label needs no IDNA tables.
func lower(s string) (string, bool) {
	upper := false
	for i := 0; i < len(s); i++ {
		if s[i] >= 0x80 {
			return "", false
		}
		upper = upper || s[i] >= 'A' && s[i] <= 'Z'
	}
	if upper {
		s = strings.ToLower(s)
	}
	return s, !strings.Contains(s, "xn--")
}

func canonicalIPv6(s string) (Host, error) {
	inner, ok := strings.CutSuffix(s[1:], "]")
	if !ok {
		return Host{}, ErrHost
	}
	ip, err := netip.ParseAddr(inner)
	if err != nil || !ip.Is6() || ip.Zone() != "" || ip.Is4In6() || ip.String() != strings.ToLower(inner) {
		return Host{}, errRadix
	}
	return Host{Name: ip.String(), IP: ip}, nil
}

func checkLabels(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%w: length", ErrHost)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return fmt.Errorf("%w: label length", ErrHost)
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("%w: label begins or ends with a hyphen", ErrHost)
		}
		for i := 0; i < len(label); i++ {
			if c := label[i]; !isLDH(c) || c >= 'A' && c <= 'Z' {
				return fmt.Errorf("%w: character %q", ErrHost, c)
			}
		}
	}
	return nil
}

func isLDH(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
}

// numeric reports whether a last label makes its whole name an address in the
// eyes of inet_aton: all digits, or 0x and hexadecimal digits (or none).
func numeric(label string) bool {
	digits := true
	for i := 0; i < len(label); i++ {
		digits = digits && label[i] >= '0' && label[i] <= '9'
	}
	if digits {
		return true
	}
	hex, ok := strings.CutPrefix(label, "0x")
	if !ok {
		return false
	}
	for i := 0; i < len(hex); i++ {
		if c := hex[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

// SplitHostPort reads "host:port" or, when defaultPort is not 0, "host". The
// port must be 1 to 5 decimal digits without a leading zero (step 4).
func SplitHostPort(s string, defaultPort uint16) (Host, uint16, error) {
	host, port := s, defaultPort
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		p, err := parsePort(s[i+1:])
		if err != nil {
			return Host{}, 0, err
		}
		host, port = s[:i], p
	}
	if port == 0 {
		return Host{}, 0, fmt.Errorf("%w: no port", ErrHost)
	}
	h, err := Canonical(host)
	return h, port, err
}

func parsePort(s string) (uint16, error) {
	if s == "" || len(s) > 5 || s[0] == '0' {
		return 0, fmt.Errorf("%w: port", ErrHost)
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, fmt.Errorf("%w: port", ErrHost)
		}
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%w: port", ErrHost)
	}
	return uint16(n), nil
}

// Match reports whether a canonical name is granted by a rule's host pattern:
// the same name, or "*.suffix" with one or more whole labels before the suffix
// (step 6). Addresses match only themselves.
func (h Host) Match(pattern string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		return !h.IP.IsValid() && suffix != "" && len(h.Name) > len(suffix)+1 &&
			strings.HasSuffix(h.Name, suffix) && h.Name[len(h.Name)-len(suffix)-1] == '.'
	}
	return h.Name == pattern
}

// Authority is the host as it stands in a URL or a Host field.
func (h Host) Authority(port, defaultPort uint16) string {
	name := h.Name
	if h.IP.Is6() {
		name = "[" + name + "]"
	}
	if port == defaultPort {
		return name
	}
	return name + ":" + strconv.Itoa(int(port))
}
