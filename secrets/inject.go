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
	case policy.AsBearer:
	case policy.AsBasic:
		if strings.ContainsAny(in.Username, ":\r\n\x00") {
			return fmt.Errorf("%w: username", ErrInjection)
		}
	case policy.AsHeader:
		name := http.CanonicalHeaderKey(in.Field)
		if !httpguts.ValidHeaderFieldName(in.Field) || forbidden[name] || strings.HasPrefix(name, "Proxy-") {
			return fmt.Errorf("%w: header field %q", ErrInjection, in.Field)
		}
	case policy.AsQuery:
		if in.Field == "" || in.Field != url.QueryEscape(in.Field) {
			return fmt.Errorf("%w: query parameter %q", ErrInjection, in.Field)
		}
	case policy.AsSigV4:
		if in.Region == "" || in.Service == "" {
			return fmt.Errorf("%w: aws-sigv4 needs region and service", ErrInjection)
		}
	default:
		return fmt.Errorf("%w: %q; want bearer, basic, header, query or aws-sigv4", ErrInjection, in.As)
	}
	return nil
}

// Field is the header field that the injection owns, "" if it is none: the
// sandbox's own copies of it must not be sent.
func Field(in *policy.Injection) string {
	switch in.As {
	case policy.AsBearer, policy.AsBasic, policy.AsSigV4:
		return "Authorization"
	case policy.AsHeader:
		return http.CanonicalHeaderKey(in.Field)
	}
	return ""
}

// Apply puts the value into a request, in place of whatever the sandbox sent
// in the same field or parameter. It is the last thing done to the request. A
// header that holds placeholder keeps what stands around it; "" is none. Not
// for aws-sigv4: see Sign.
func Apply(in *policy.Injection, v Value, placeholder string, header http.Header, u *url.URL) error {
	if err := Check(in); err != nil {
		return err
	}
	if v.IsZero() {
		return ErrValue
	}
	text := string(v.bytes())
	if in.As == policy.AsHeader && placeholder != "" {
		if own := header[Field(in)]; len(own) == 1 && strings.Count(own[0], placeholder) == 1 {
			text = strings.Replace(own[0], placeholder, text, 1)
		}
	}
	if field := Field(in); field != "" {
		Strip(header, field)
	}
	switch in.As {
	case policy.AsBearer:
		header["Authorization"] = []string{"Bearer " + text}
	case policy.AsBasic:
		header["Authorization"] = []string{"Basic " + basic(in.Username, v.bytes())}
	case policy.AsHeader:
		header[Field(in)] = []string{text}
	case policy.AsQuery:
		u.RawQuery = setQuery(u.RawQuery, in.Field, text)
	default:
		return fmt.Errorf("%w: %q", ErrInjection, in.As)
	}
	return nil
}

func basic(username string, value []byte) string {
	pair := make([]byte, 0, len(username)+1+len(value))
	pair = append(append(append(pair, username...), ':'), value...)
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
