package policy

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// CanonicalHost returns a host's name in the one form that rules use: lower
// case, international labels as xn--, no dot at the end. A name that any
// program could read as an address is refused.
func CanonicalHost(s string) (string, error) {
	name := strings.TrimSuffix(s, ".")
	if name == "" {
		return "", errors.New("is empty; write a host's name")
	}
	if strings.ContainsAny(name, ":/@[]%?#\\ \t") {
		return "", fmt.Errorf("%s is not a host's name; write the name alone, without scheme, port, user or path", quote(s))
	}
	name, err := idna.Lookup.ToASCII(strings.ToLower(name))
	if err != nil {
		return "", fmt.Errorf("%s is not a host's name", quote(s))
	}
	if len(name) > 253 {
		return "", fmt.Errorf("%s is longer than 253 characters", quote(s))
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if !hostLabel(l) {
			return "", fmt.Errorf("%s has the label %s; labels are 1 to 63 of a-z 0-9 -, not starting or ending with -", quote(s), quote(l))
		}
	}
	// 10.1, 0x7f000001 and 2130706433 are addresses to somebody's parser.
	if last := labels[len(labels)-1]; digits(last) || strings.HasPrefix(last, "0x") {
		return "", fmt.Errorf("%s is an address; name the host, and give its addresses with resolve", quote(s))
	}
	return name, nil
}

func hostLabel(l string) bool {
	if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	for i := range len(l) {
		if !lowerAlnum(l[i]) && l[i] != '-' {
			return false
		}
	}
	return true
}

// checkHostPattern accepts a canonical host or "*." and a canonical suffix that
// one owner holds.
func checkHostPattern(s string) error {
	host, wild := strings.CutPrefix(s, "*.")
	if strings.Contains(host, "*") {
		return fmt.Errorf("%s: a star stands only as the whole first label, as in *.example.com", quote(s))
	}
	name, err := CanonicalHost(host)
	if err != nil {
		return err
	}
	if wild {
		// Under a public suffix anybody can register a name: granting it all
		// would be granting the whole way out.
		if suffix, _ := publicsuffix.PublicSuffix(name); suffix == name {
			return fmt.Errorf("%s would grant every name under %s, which anybody can get; name a longer suffix or exact hosts", quote(s), name)
		}
		name = "*." + name
	}
	if name != s {
		return fmt.Errorf("%s is not in the form that requests are matched in; write %s", quote(s), name)
	}
	return nil
}
