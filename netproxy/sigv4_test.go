package netproxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// verifySigV4 verifies a request as a service does, by the letter of AWS's
// document; it says why it refuses.
func verifySigV4(r *http.Request, service, id, key, payload string) string {
	auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok || len(r.Header["Authorization"]) != 1 {
		return "no signature"
	}
	fields := map[string]string{}
	for part := range strings.SplitSeq(auth, ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[k] = v
	}
	date := r.Header.Get("X-Amz-Date")
	if len(date) != 16 {
		return "no date"
	}
	scope := date[:8] + "/eu-central-1/" + service + "/aws4_request"
	if fields["Credential"] != id+"/"+scope {
		return "the scope is " + fields["Credential"]
	}
	path := r.URL.EscapedPath()
	if service == "s3" {
		path = r.URL.Path
	}
	var query []string
	for part := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if part != "" {
			k, v, _ := strings.Cut(part, "=")
			k, _ = url.PathUnescape(k)
			v, _ = url.PathUnescape(v)
			query = append(query, encode(k, "")+"="+encode(v, ""))
		}
	}
	slices.Sort(query)
	canonical := r.Method + "\n" + encode(path, "/") + "\n" + strings.Join(query, "&") + "\n"
	signed := strings.Split(fields["SignedHeaders"], ";")
	for name := range r.Header {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "x-amz-") && !slices.Contains(signed, lower) {
			return lower + " is not signed"
		}
	}
	for _, name := range signed {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = r.Header.Get("Content-Length")
			if value == "" {
				return "content-length is signed and was not sent"
			}
		}
		canonical += name + ":" + strings.Join(strings.Fields(value), " ") + "\n"
	}
	canonical += "\n" + fields["SignedHeaders"] + "\n" + payload
	hash := sha256.Sum256([]byte(canonical))
	text := "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + hex.EncodeToString(hash[:])
	k := []byte("AWS4" + key)
	for _, step := range []string{date[:8], "eu-central-1", service, "aws4_request"} {
		k = mac(k, step)
	}
	if fields["Signature"] != hex.EncodeToString(mac(k, text)) {
		return "the signature is wrong for\n" + canonical
	}
	return ""
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

func encode(s, keep string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; strings.IndexByte("-._~"+keep, c) >= 0 || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
		}
	}
	return b.String()
}

// wrongCertificate is for another name than the server's.
func wrongCertificate(w *world) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{w.cert("another.test", func(c *x509.Certificate) {})}}
}
