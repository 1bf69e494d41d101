package isolate

import (
	"errors"
	"strings"

	"github.com/nlnwa/whatwg-url/url"
)

// maxURL bounds an address in bytes: the parser takes 70 ns for each of most.
const maxURL = 1 << 20

// maxAt bounds the at signs before a host: the parser's work grows with their
// square.
const maxAt = 256

var errURL = errors.New("isolate: not a URL")

// urlRecord is what a URL object of the code shows: its parts, a line each. None
// of them can have a line break in it.
func urlRecord(u *url.Url) string {
	return strings.Join([]string{u.Href(false), urlOrigin(u), u.Protocol(), u.Username(), u.Password(), u.Host(), u.Hostname(), u.Port(), u.Pathname(), u.Search(), u.Hash()}, "\n")
}

// parseURL parses an address, relative to base if that is not nil.
func parseURL(input string, base *string) (*url.Url, error) {
	if !parsable(input) || base != nil && !parsable(*base) {
		return nil, errURL
	}
	if base == nil {
		return url.Parse(input)
	}
	return url.ParseRef(*base, input)
}

func parsable(s string) bool {
	if len(s) > maxURL {
		return false
	}
	// Paths and queries may have as many as they like.
	i := strings.Index(s, ":") + 1
	authority := strings.TrimLeft(s[i:], "/\\\t\r\n ")
	if end := strings.IndexAny(authority, "/?#"); end >= 0 {
		authority = authority[:end]
	}
	return strings.Count(authority, "@") <= maxAt
}

// setURL is what an assignment to a property of a URL object does.
func setURL(href, name, value string) (*url.Url, error) {
	u, err := parseURL(href, nil)
	if err != nil {
		return nil, err
	}
	if len(value) > maxURL || name != "search" && name != "hash" && name != "pathname" && strings.Count(value, "@") > maxAt {
		return u, nil // as other values that make no sense there
	}
	switch name {
	case "protocol":
		u.SetProtocol(value)
	case "username":
		u.SetUsername(value)
	case "password":
		u.SetPassword(value)
	case "host":
		u.SetHost(value)
	case "hostname":
		u.SetHostname(value)
	case "port":
		u.SetPort(value)
	case "pathname":
		u.SetPathname(value)
	case "search":
		u.SetSearch(value)
	case "hash":
		u.SetHash(value)
	}
	return u, nil
}

// urlOrigin is the serialized origin.
func urlOrigin(u *url.Url) string {
	switch u.Scheme() {
	case "http", "https", "ws", "wss", "ftp":
		return u.Protocol() + "//" + u.Host()
	case "blob":
		inner, err := parseURL(u.Pathname(), nil)
		if err == nil && (inner.Scheme() == "http" || inner.Scheme() == "https") {
			return inner.Protocol() + "//" + inner.Host()
		}
	}
	return "null"
}
