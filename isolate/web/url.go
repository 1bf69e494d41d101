package web

import (
	"errors"
	"strings"

	"github.com/nlnwa/whatwg-url/url"
)

// The parser's work grows with the square of what stands before or in a host, and
// with the length of a path times the number of its segments. They have limits far
// beyond any address that means something; a query and a fragment may be as long
// as maxURL.
const (
	maxURL     = 1 << 20 // bytes
	maxSegment = 8192    // bytes
	maxPath    = 1 << 27 // bytes times segments
	maxAt      = 1024    // at signs before a query
)

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

// parsable keeps the limits above. A path that is not divided (of data: and the
// like) is read in one go, and may be long.
func parsable(s string) bool {
	head, segments, longest := shape(s)
	switch {
	case len(s) > maxURL || strings.Count(head, "@") > maxAt && !undivided(head):
		return false
	case len(head) <= maxSegment:
		return true
	case undivided(head):
		return true
	}
	return len(head)*segments <= maxPath && longest <= maxSegment
}

// shape is what comes before the query and the fragment, into how many parts
// slashes divide that, and the length of the longest one.
func shape(s string) (head string, segments, longest int) {
	head = s
	if end := strings.IndexAny(s, "?#"); end >= 0 {
		head = s[:end]
	}
	last := 0
	for i := 0; i < len(head); i++ {
		if head[i] == '/' || head[i] == '\\' {
			segments++
			longest = max(longest, i-last)
			last = i
		}
	}
	return head, segments + 1, max(longest, len(head)-last)
}

// undivided tells of an address with a scheme, no host and no slash after it.
func undivided(head string) bool {
	scheme, rest, ok := strings.Cut(head, ":")
	rest = strings.TrimLeft(rest, "\t\r\n")
	if !ok || rest == "" || rest[0] == '/' || rest[0] == '\\' {
		return false
	}
	switch strings.ToLower(strings.TrimSpace(scheme)) {
	case "data", "blob", "javascript", "mailto", "urn", "tel":
		return true
	}
	return false
}

// Cost is about how long parsing an address takes, in nanoseconds.
func Cost(s string) int64 {
	head, segments, longest := shape(s)
	longest = min(longest, maxSegment)
	return 70*int64(len(s)) + min(int64(len(head))*int64(segments), maxPath) + int64(longest)*int64(longest)/8
}

// SetURL is what an assignment to a property of a URL object does: it gives the
// record with it done. A value that makes no sense there changes nothing.
func SetURL(href, name, value string) (string, error) {
	u, err := parse(href, nil)
	if err != nil {
		return "", err
	}
	if !settable(name, value) {
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

func settable(name, value string) bool {
	switch name {
	case "search", "hash":
		return len(value) <= maxURL
	case "pathname":
		// A question mark is one more character of a path here.
		return parsable(strings.NewReplacer("?", "_", "#", "_", ":", "_").Replace(value))
	}
	return len(value) <= maxSegment && strings.Count(value, "@") <= maxAt
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
