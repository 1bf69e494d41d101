package web

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

// ErrURL says that an address is too long or too odd to be parsed.
var ErrURL = errors.New("web: not a URL")

func record(u *url.Url) string {
	return strings.Join([]string{u.Href(false), origin(u), u.Protocol(), u.Username(), u.Password(), u.Host(), u.Hostname(), u.Port(), u.Pathname(), u.Search(), u.Hash()}, "\n")
}

// ParseURL parses an address, relative to base if that is not nil. It gives the
// record of a URL object: href, origin, protocol, username, password, host,
// hostname, port, pathname, search and hash, a line each; none of them can have a
// line break in it.
func ParseURL(input string, base *string) (string, error) {
	u, err := parse(input, base)
	if err != nil {
		return "", err
	}
	return record(u), nil
}

func parse(input string, base *string) (*url.Url, error) {
	if !parsable(input) || base != nil && !parsable(*base) {
		return nil, ErrURL
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

// SetURL is what an assignment to a property of a URL object does: it gives the
// record with it done. A value that makes no sense there changes nothing.
func SetURL(href, name, value string) (string, error) {
	u, err := parse(href, nil)
	if err != nil {
		return "", err
	}
	if len(value) > maxURL || name != "search" && name != "hash" && name != "pathname" && strings.Count(value, "@") > maxAt {
		return record(u), nil
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
	return record(u), nil
}

// origin is the serialized origin.
func origin(u *url.Url) string {
	switch u.Scheme() {
	case "http", "https", "ws", "wss", "ftp":
		return u.Protocol() + "//" + u.Host()
	case "blob":
		inner, err := parse(u.Pathname(), nil)
		if err == nil && (inner.Scheme() == "http" || inner.Scheme() == "https") {
			return inner.Protocol() + "//" + inner.Host()
		}
	}
	return "null"
}
