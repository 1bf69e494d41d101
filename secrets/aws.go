package secrets

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"sandboxd/policy"
)

// Payload hashes that stand for a body which is not hashed as a whole.
const (
	unsignedPayload = "UNSIGNED-PAYLOAD"
	// The body is in chunks without signatures, and a checksum follows it.
	unsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

const amzHash = "X-Amz-Content-Sha256"

// ErrPayload says that the body of a request cannot be signed as it is sent.
var ErrPayload = errors.New("secrets: the body is signed in chunks with a key of the sandbox's own")

// awsKeys are what one AWS credential consists of.
type awsKeys struct{ id, secret, session string }

// processOutput is what an AWS credential_process prints.
type processOutput struct {
	Version         int
	AccessKeyID     string `json:"AccessKeyId"`
	SecretAccessKey string
	SessionToken    string
}

func awsOf(in *policy.Injection, v Value) (awsKeys, error) {
	b := v.bytes()
	if len(b) == 0 {
		return awsKeys{}, ErrValue
	}
	k := awsKeys{id: in.AccessKeyID, secret: string(b)}
	if b[0] == '{' {
		var out processOutput
		if json.Unmarshal(b, &out) != nil || out.Version != 1 {
			return awsKeys{}, fmt.Errorf("%w: no output of an AWS credential_process", ErrValue)
		}
		k = awsKeys{out.AccessKeyID, out.SecretAccessKey, out.SessionToken}
	}
	if k.id == "" || len(k.secret) < MinLength {
		return awsKeys{}, fmt.Errorf("%w: AWS keys need an access key's id (access_key_id in the rule) and a secret", ErrValue)
	}
	return k, nil
}

// parts are the byte strings of a value that must not come back.
func (i Injected) parts() [][]byte {
	if i.Value.IsZero() {
		return nil
	}
	if i.As == nil || i.As.As != policy.AsSigV4 {
		return [][]byte{i.Value.bytes()}
	}
	k, err := awsOf(i.As, i.Value)
	if err != nil {
		return [][]byte{i.Value.bytes()}
	}
	parts := [][]byte{[]byte(k.secret)}
	if k.session != "" {
		parts = append(parts, []byte(k.session))
	}
	return parts
}

// PayloadHash is how the body of a request will be signed, from what the
// sandbox says: "" when the body must be read and hashed first. A hash that the
// sandbox names and that is wrong is refused by the service.
func PayloadHash(in *policy.Injection, header http.Header) (string, error) {
	unsigned := in.Payload == "unsigned" || in.Payload == "" && in.Service == "s3"
	switch own := header.Get(amzHash); {
	case own == "" && unsigned:
		return unsignedPayload, nil
	case own == "":
		return "", nil
	case own == unsignedTrailer, own == unsignedPayload:
		if !unsigned {
			return "", ErrPayload
		}
		return own, nil
	case isHash(own):
		return own, nil
	}
	return "", ErrPayload
}

func isHash(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && s == strings.ToLower(s)
}

// A Signing is the request that Sign signs, as it will be sent.
type Signing struct {
	Method, Scheme, Host string
	Path                 string // as it is sent
	Query                string // likewise, without the question mark
	Length               int64  // of the body; -1 unknown
	Payload              string // its hash, hexadecimal, or a word for none
	Time                 time.Time
}

// Sign signs a request with AWS Signature Version 4, in place of whatever
// signature the sandbox made. It returns the query to send. It is the last
// thing done to the request.
func Sign(ctx context.Context, in *policy.Injection, v Value, s Signing, header http.Header) (query string, err error) {
	if err := Check(in); err != nil {
		return "", err
	}
	keys, err := awsOf(in, v)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", amzHash} {
		Strip(header, name)
	}
	u, err := signedURL(in, s)
	if err != nil {
		return "", err
	}
	req := &http.Request{Method: s.Method, URL: u, Host: s.Host, Header: http.Header{}, ContentLength: s.Length}
	for name, values := range header {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "x-amz-") || lower == "content-type" || lower == "content-md5" {
			req.Header[name] = slices.Clone(values)
		}
	}
	if in.Service == "s3" || s.Payload == unsignedPayload {
		req.Header.Set(amzHash, s.Payload)
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = in.Service == "s3" })
	err = signer.SignHTTP(ctx, aws.Credentials{AccessKeyID: keys.id, SecretAccessKey: keys.secret, SessionToken: keys.session},
		req, s.Payload, in.Service, in.Region, s.Time)
	if err != nil {
		return "", fmt.Errorf("%w: it cannot be signed", ErrInjection)
	}
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", amzHash} {
		if values := req.Header.Values(name); len(values) > 0 {
			header[http.CanonicalHeaderKey(name)] = values
		}
	}
	return req.URL.RawQuery, nil
}

// signedURL is the target as the service will see it. S3 decodes a path before
// it encodes it in its own way; the other services encode what they are sent
// once more.
func signedURL(in *policy.Injection, s Signing) (*url.URL, error) {
	decoded, err := url.PathUnescape(s.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: path", ErrInjection)
	}
	u := &url.URL{Scheme: s.Scheme, Host: s.Host, Path: decoded, RawPath: s.Path, RawQuery: dropPresigned(s.Query)}
	if in.Service == "s3" {
		u.RawPath = awsEscape(decoded)
	}
	return u, nil
}

// dropPresigned takes a signature in the query out.
func dropPresigned(raw string) string {
	var keep []string
	for part := range strings.SplitSeq(raw, "&") {
		key, _, _ := strings.Cut(part, "=")
		decoded, err := url.QueryUnescape(key)
		switch strings.ToLower(decoded) {
		case "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-signature", "x-amz-security-token":
			continue
		}
		if part != "" && err == nil {
			keep = append(keep, part)
		}
	}
	return strings.Join(keep, "&")
}

// awsEscape encodes all but unreserved characters and the slash.
func awsEscape(s string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~/", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', digits[c>>4], digits[c&15]})
	}
	return b.String()
}
