package secrets

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/policy"
)

const (
	vectorKey    = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	vectorRegion = "us-east-1"
	emptyHash    = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

var vectorTime = time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)

func sum(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// expected computes a signature by the letter of AWS's document, from what a
// server has: the request line as it came and the header.
func expected(method, rawPath, rawQuery, host string, header http.Header, secret, service, payload string) string {
	auth := header.Get("Authorization")
	_, rest, _ := strings.Cut(auth, "SignedHeaders=")
	signed, _, _ := strings.Cut(rest, ",")
	var params []string
	for part := range strings.SplitSeq(rawQuery, "&") {
		if part == "" {
			continue
		}
		k, v, _ := strings.Cut(part, "=")
		k, _ = url.PathUnescape(k)
		v, _ = url.PathUnescape(v)
		params = append(params, strings.ReplaceAll(awsEscape(k), "/", "%2F")+"="+strings.ReplaceAll(awsEscape(v), "/", "%2F"))
	}
	slices.Sort(params)
	path := rawPath
	if service == "s3" {
		path, _ = url.PathUnescape(rawPath)
	}
	canonical := method + "\n" + awsEscape(path) + "\n" + strings.Join(params, "&") + "\n"
	for name := range strings.SplitSeq(signed, ";") {
		value := strings.Join(header.Values(name), ",")
		if name == "host" {
			value = host
		}
		canonical += name + ":" + strings.Join(strings.Fields(value), " ") + "\n"
	}
	canonical += "\n" + signed + "\n" + payload
	date := header.Get("X-Amz-Date")
	hash := sha256.Sum256([]byte(canonical))
	scope := date[:8] + "/" + vectorRegion + "/" + service + "/aws4_request"
	text := "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + hex.EncodeToString(hash[:])
	key := sum(sum(sum(sum([]byte("AWS4"+secret), date[:8]), vectorRegion), service), "aws4_request")
	return hex.EncodeToString(sum(key, text))
}

func TestSignAgainstThePublishedVectors(t *testing.T) {
	in := &policy.Injection{Name: "a", As: policy.AsSigV4, Region: vectorRegion, Service: "service", AccessKeyID: "AKIDEXAMPLE"}
	for _, tc := range []struct{ name, method, path, query, want string }{
		{"get-vanilla", "GET", "/", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"get-vanilla-empty-query-key", "GET", "/", "Param1=value1", "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
		{"get-vanilla-query-order-key-case", "GET", "/", "Param2=value2&Param1=value1", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
		{"get-unreserved", "GET", "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", "", "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
		{"post-vanilla", "POST", "/", "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
		{"post-vanilla-query", "POST", "/", "Param1=value1", "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
	} {
		h := http.Header{}
		query, err := Sign(t.Context(), in, value(t, vectorKey), Signing{Method: tc.method, Scheme: "https", Host: "example.amazonaws.com",
			Path: tc.path, Query: tc.query, Payload: emptyHash, Time: vectorTime}, h)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		want := "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + tc.want
		if got := h.Get("Authorization"); got != want {
			t.Errorf("%s: got %s, want %s", tc.name, got, want)
		}
		if again := expected(tc.method, tc.path, query, "example.amazonaws.com", h, vectorKey, "service", emptyHash); again != tc.want {
			t.Errorf("%s: this file's own signature is %s", tc.name, again)
		}
	}
}

func TestSignAgainstAnotherImplementation(t *testing.T) {
	for _, service := range []string{"s3", "execute-api"} {
		in := &policy.Injection{Name: "a", As: policy.AsSigV4, Region: vectorRegion, Service: service, AccessKeyID: "AKIDEXAMPLE"}
		for _, tc := range []struct{ path, query string }{
			{"/", ""}, {"/a/b%20c/d", "x=1&y=%2F&list-type=2&prefix=a%20b"}, {"/caf%C3%A9/%28x%29", "b&a=&c=d%3De"},
			{"/a+b/c@d:e", "q=a%2Bb"}, {"/k", "X-Amz-Signature=abc&X-Amz-Credential=own&keep=1&X-Amz-Expires=9"},
		} {
			h := http.Header{
				"Authorization": {"AWS4-HMAC-SHA256 Credential=theirs"}, "X-Amz-Date": {"20010101T000000Z"}, "X_amz_date": {"twin"},
				"X-Amz-Security-Token": {"theirs"}, "Content-Type": {"text/plain;  charset=utf-8"}, "X-Amz-Meta-A": {"b"}, "Accept": {"*/*"},
			}
			payload := hex.EncodeToString(sum(nil, "body"))
			query, err := Sign(t.Context(), in, value(t, canary), Signing{Method: "PUT", Scheme: "https", Host: "b.example.com",
				Path: tc.path, Query: tc.query, Length: 7, Payload: payload, Time: vectorTime}, h)
			if err != nil {
				t.Fatal(err)
			}
			h.Set("Content-Length", "7") // as the transport sends it
			want := expected("PUT", tc.path, query, "b.example.com", h, canary, service, payload)
			auth := h.Get("Authorization")
			if !strings.HasSuffix(auth, "Signature="+want) || strings.Count(auth, "Credential=AKIDEXAMPLE/20150830/") != 1 {
				t.Errorf("%s %s?%s: %s, want %s", service, tc.path, tc.query, auth, want)
			}
			if !strings.Contains(auth, "x-amz-meta-a") || h.Get("X-Amz-Security-Token") != "" || len(h["X_amz_date"]) != 0 || h.Get("Accept") != "*/*" {
				t.Errorf("%s: header %v", service, h)
			}
			if strings.Contains(query, "X-Amz-") || strings.Contains(tc.query, "keep") && !strings.Contains(query, "keep=1") {
				t.Errorf("query %q", query)
			}
			if strings.Contains(auth, canary) {
				t.Error("the key itself is in the header")
			}
		}
	}
}

func TestSignWithAProcessOutput(t *testing.T) {
	in := &policy.Injection{Name: "a", As: policy.AsSigV4, Region: vectorRegion, Service: "s3"}
	out := `{"Version":1,"AccessKeyId":"ASIAEXAMPLE","SecretAccessKey":"` + vectorKey + `","SessionToken":"session-token/0123456789","Expiration":"2031-01-01T00:00:00Z"}`
	h := http.Header{}
	if _, err := Sign(t.Context(), in, value(t, out), Signing{Method: "GET", Scheme: "https", Host: "h", Path: "/", Payload: unsignedPayload, Time: vectorTime}, h); err != nil {
		t.Fatal(err)
	}
	if h.Get("X-Amz-Security-Token") != "session-token/0123456789" || h.Get(amzHash) != unsignedPayload ||
		!strings.Contains(h.Get("Authorization"), "ASIAEXAMPLE/") || !strings.Contains(h.Get("Authorization"), "x-amz-security-token") {
		t.Errorf("header %v", h)
	}
	if want := expected("GET", "/", "", "h", h, vectorKey, "s3", unsignedPayload); !strings.HasSuffix(h.Get("Authorization"), want) {
		t.Errorf("signature %s, want %s", h.Get("Authorization"), want)
	}
	r := NewRedactorOf([]Injected{{in, value(t, out)}})
	for _, secret := range []string{vectorKey, "session-token/0123456789"} {
		if got := r.Text("x " + secret + " y"); strings.Contains(got, secret) {
			t.Errorf("%q comes back", secret)
		}
	}
	for _, bad := range []string{`{"Version":2,"AccessKeyId":"A","SecretAccessKey":"` + vectorKey + `"}`, `{"Version":1}`, `{broken json`} {
		if _, err := Sign(t.Context(), in, value(t, bad), Signing{Method: "GET", Path: "/"}, http.Header{}); !errors.Is(err, ErrValue) || strings.Contains(err.Error(), vectorKey) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := Sign(t.Context(), in, value(t, vectorKey), Signing{Method: "GET", Path: "/"}, http.Header{}); !errors.Is(err, ErrValue) {
		t.Errorf("no access key's id: %v", err)
	}
}

func TestPayloadHash(t *testing.T) {
	for _, tc := range []struct{ service, payload, own, want string }{
		{"s3", "", "", unsignedPayload}, {"s3", "signed", "", ""}, {"sqs", "", "", ""}, {"sqs", "unsigned", "", unsignedPayload},
		{"s3", "", emptyHash, emptyHash}, {"sqs", "", emptyHash, emptyHash}, {"s3", "", unsignedTrailer, unsignedTrailer},
		{"s3", "", unsignedPayload, unsignedPayload}, {"s3", "signed", unsignedPayload, "error"}, {"sqs", "", unsignedTrailer, "error"},
		{"s3", "", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "error"}, {"s3", "", "nonsense", "error"}, {"s3", "", strings.ToUpper(emptyHash), "error"},
	} {
		h := http.Header{}
		if tc.own != "" {
			h.Set(amzHash, tc.own)
		}
		got, err := PayloadHash(&policy.Injection{As: policy.AsSigV4, Service: tc.service, Payload: tc.payload}, h)
		if errors.Is(err, ErrPayload) {
			got = "error"
		}
		if got != tc.want {
			t.Errorf("%+v: %q, %v", tc, got, err)
		}
	}
}
