package secrets

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"

	"sandboxd/policy"
)

// ErrInjection says that a rule's injection makes no sense.
var ErrInjection = errors.New("secrets: unusable injection")

// forbidden are fields that frame a message or name its target; a credential
// in one of them would change what was decided on.
var forbidden = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true,
	"Trailer": true, "Te": true, "Upgrade": true, "Keep-Alive": true, "Expect": true,
	"Proxy-Authorization": true, "Proxy-Connection": true,
}

// Check says what is wrong with an injection, if anything.
func Check(in *policy.Injection) error {
	if err := CheckName(in.Name); err != nil {
		return err
	}
	switch in.As {
	case "bearer":
	case "basic":
		if strings.ContainsAny(in.Username, ":\r\n\x00") {
			return fmt.Errorf("%w: username", ErrInjection)
		}
	case "header":
		name := http.CanonicalHeaderKey(in.Field)
		if !httpguts.ValidHeaderFieldName(in.Field) || forbidden[name] || strings.HasPrefix(name, "Proxy-") {
			return fmt.Errorf("%w: header field %q", ErrInjection, in.Field)
		}
	case "query":
		if in.Field == "" || in.Field != url.QueryEscape(in.Field) {
			return fmt.Errorf("%w: query parameter %q", ErrInjection, in.Field)
		}
	default:
		return fmt.Errorf("%w: %q; want bearer, basic, header or query", ErrInjection, in.As)
	}
	return nil
}

// Field is the header field that the injection owns, "" if it is none: the
// sandbox's own copies of it must not be sent.
func Field(in *policy.Injection) string {
	switch in.As {
	case "bearer", "basic":
		return "Authorization"
	case "header":
		return http.CanonicalHeaderKey(in.Field)
	}
	return ""
}

// Apply puts the value into a request, in place of whatever the sandbox sent
// in the same field or parameter. It is the last thing done to the request.
func Apply(in *policy.Injection, v Value, header http.Header, u *url.URL) error {
	if err := Check(in); err != nil {
		return err
	}
	if v.IsZero() {
		return ErrValue
	}
	if field := Field(in); field != "" {
		Strip(header, field)
	}
	switch in.As {
	case "bearer":
		header["Authorization"] = []string{"Bearer " + string(v.bytes())}
	case "basic":
		header["Authorization"] = []string{"Basic " + basic(in.Username, v)}
	case "header":
		header[Field(in)] = []string{string(v.bytes())}
	case "query":
		u.RawQuery = setQuery(u.RawQuery, in.Field, string(v.bytes()))
	}
	return nil
}

func basic(username string, v Value) string {
	pair := make([]byte, 0, len(username)+1+len(v.bytes()))
	pair = append(append(append(pair, username...), ':'), v.bytes()...)
	return base64.StdEncoding.EncodeToString(pair)
}

// Strip removes every field of that name and its twins: CGI-like servers read
// "x_token" as "X-Token".
func Strip(header http.Header, field string) {
	want := twin(field)
	for name := range header {
		if twin(name) == want {
			delete(header, name)
		}
	}
}

func twin(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }

// setQuery keeps the parameters' bytes as they are, except those of that name,
// and appends ours.
func setQuery(raw, name, value string) string {
	var keep []string
	for part := range strings.SplitSeq(raw, "&") {
		key, _, _ := strings.Cut(part, "=")
		decoded, err := url.QueryUnescape(key)
		if part == "" || err != nil || decoded == name {
			continue
		}
		keep = append(keep, part)
	}
	return strings.Join(append(keep, name+"="+url.QueryEscape(value)), "&")
}
