package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/policy"
)

const canary = "s3cr3t/Tok+en=&\"ü-0123"

func value(t testing.TB, s string) Value {
	t.Helper()
	v, err := NewValue([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestValueIsNeverShown(t *testing.T) {
	v := value(t, canary)
	type holder struct {
		V Value
		P *Value
	}
	h := holder{v, &v}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v, "p", &v, "h", h)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v, "p", &v, "h", h)
	raw, err := json.Marshal(map[string]any{"v": v, "h": h})
	if err != nil {
		t.Fatal(err)
	}
	var set Set
	if err := set.Put("a", v); err != nil {
		t.Fatal(err)
	}
	out := log.String() + string(raw)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c"} {
		out += fmt.Sprintf(verb, v) + fmt.Sprintf(verb, &v) + fmt.Sprintf(verb, h) + fmt.Sprintf(verb, []Value{v}) + fmt.Sprintf(verb, &set) + fmt.Sprintf(verb, set.Held("a"))
	}
	for _, form := range NewRedactor(nil, v).forms {
		if strings.Contains(out, string(form)) {
			t.Fatalf("shown as %q", form)
		}
	}
	if strings.Contains(out, "115 51 99") { // bytes as decimals
		t.Fatal("shown as numbers")
	}
}

func TestNewValue(t *testing.T) {
	for in, ok := range map[string]bool{
		"12345678": true, "12345678\n": true, "12345678\r\n": true, "1234567": false, "": false,
		"12345678\n\n": false, "1234\r5678": false, "12345678\x00": false, "12345678\x7f": false,
		strings.Repeat("x", MaxLength): true, strings.Repeat("x", MaxLength+1): false,
	} {
		_, err := NewValue([]byte(in))
		if (err == nil) != ok {
			t.Errorf("%d bytes %.12q: %v", len(in), in, err)
		}
		if err != nil && (!errors.Is(err, ErrValue) || len(in) > 3 && strings.Contains(err.Error(), in)) {
			t.Errorf("error %v", err)
		}
	}
}

func TestSetReadsFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("12345678\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	var s Set
	f := open()
	if err := s.Read("api-token", f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err == nil {
		t.Error("the file was left open")
	}
	if v, err := s.Get("api-token"); err != nil || string(v.bytes()) != "12345678" {
		t.Errorf("got %d bytes, %v", len(v.bytes()), err)
	}
	if _, err := s.Get("other"); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown name: %v", err)
	}
	for _, name := range []string{"", "../x", "a/b", "-a", strings.Repeat("a", 65)} {
		if err := s.Read(name, open()); !errors.Is(err, ErrName) {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func TestApply(t *testing.T) {
	v := value(t, "tok en+/12")
	for _, tc := range []struct {
		in          policy.Injection
		header, uri string // what is expected
	}{
		{policy.Injection{Name: "a", As: "bearer"}, "Authorization: Bearer tok en+/12", "/p?token=theirs&x=%2f"},
		{policy.Injection{Name: "a", As: "basic", Username: "git"},
			"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("git:tok en+/12")), "/p?token=theirs&x=%2f"},
		{policy.Injection{Name: "a", As: "header", Field: "x-api-key"}, "X-Api-Key: tok en+/12", "/p?token=theirs&x=%2f"},
		{policy.Injection{Name: "a", As: "query", Field: "token"}, "", "/p?x=%2f&token=tok+en%2B%2F12"},
	} {
		h := http.Header{"Authorization": {"theirs", "twice"}, "X_api_key": {"theirs"}, "X-Api-Key": {"theirs"}, "Accept": {"*/*"}}
		u := &url.URL{Opaque: "/p", RawQuery: "token=theirs&x=%2f"}
		if err := Apply(&tc.in, v, "", h, u); err != nil {
			t.Errorf("%+v: %v", tc.in, err)
			continue
		}
		if got := u.RequestURI(); got != tc.uri {
			t.Errorf("%+v: URI %q, want %q", tc.in, got, tc.uri)
		}
		if field := Field(&tc.in); field != "" {
			count := 0
			for name, values := range h {
				if twin(name) == twin(field) {
					count += len(values)
				}
			}
			if count != 1 || field+": "+h[field][0] != tc.header {
				t.Errorf("%+v: %d fields, %q", tc.in, count, h[field])
			}
		}
		if h.Get("Accept") != "*/*" {
			t.Errorf("%+v: other fields were lost", tc.in)
		}
	}
	for _, in := range []policy.Injection{
		{Name: "a", As: "header", Field: "Host"}, {Name: "a", As: "header", Field: "content-length"},
		{Name: "a", As: "header", Field: "transfer-encoding"}, {Name: "a", As: "header", Field: "a b"},
		{Name: "a", As: "header", Field: ""}, {Name: "a", As: "header", Field: "proxy-x"},
		{Name: "a", As: "query"}, {Name: "a", As: "query", Field: "a&b"}, {Name: "a", As: "other"}, {Name: "", As: "bearer"},
		{Name: "a", As: "basic", Username: "a:b"},
	} {
		h := http.Header{}
		if err := Apply(&in, v, "", h, &url.URL{}); err == nil || len(h) > 0 {
			t.Errorf("%+v was applied", in)
		}
	}
}

// forms are written by hand here, apart from how the redactor makes them.
func echoes(secret string) []string {
	pair := "user:" + secret
	out := []string{
		secret, "Bearer " + secret, url.QueryEscape(secret), url.PathEscape(secret),
		hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))),
		base64.StdEncoding.EncodeToString([]byte(pair)), base64.URLEncoding.EncodeToString([]byte(pair)),
		`{"token":` + string(must(json.Marshal(secret))) + `}`,
		strings.ToLower(url.QueryEscape(secret[:6])) + url.QueryEscape(secret[6:]) + secret,
	}
	for i := range 5 {
		out = append(out, base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", i)+secret+"tail")))
	}
	return out
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func leaks(out []byte, secret string) bool {
	core := []byte(secret)
	for _, form := range [][]byte{
		core, []byte(hex.EncodeToString(core)), []byte(strings.ToUpper(hex.EncodeToString(core))),
		[]byte(url.QueryEscape(secret)), []byte(url.PathEscape(secret)),
	} {
		if bytes.Contains(out, form) {
			return true
		}
	}
	// Decode every stretch of base64 and look for most of the secret.
	for _, word := range strings.FieldsFunc(string(out), func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_", r)
	}) {
		std := strings.NewReplacer("-", "+", "_", "/").Replace(word)
		for cut := range 4 {
			if cut > len(std) {
				break
			}
			n := (len(std) - cut) / 4 * 4
			decoded, err := base64.StdEncoding.DecodeString(std[cut : cut+n])
			if err == nil && bytes.Contains(decoded, core[3:len(core)-3]) {
				return true
			}
		}
	}
	return false
}

func TestStreamOverAllSplits(t *testing.T) {
	in := &policy.Injection{Name: "a", As: "basic", Username: "user"}
	r := NewRedactor(in, value(t, canary))
	for _, form := range echoes(canary) {
		body := []byte("before " + form + " after")
		if !leaks(body, canary) && !strings.Contains(form, `\"`) {
			t.Fatalf("the check does not see %q", form)
		}
		want := r.Text(string(body))
		if len(want) != len(body) || leaks([]byte(want), canary) || !strings.HasPrefix(want, "before ") || !strings.HasSuffix(want, " after") {
			t.Fatalf("whole %q became %q", body, want)
		}
		for i := range len(body) + 1 {
			for j := i; j <= len(body); j++ {
				s := r.Stream()
				var got []byte
				got = append(got, s.Write(body[:i])...)
				got = append(got, s.Write(body[i:j])...)
				got = append(got, s.Write(body[j:])...)
				got = append(got, s.Flush()...)
				if string(got) != want {
					t.Fatalf("split at %d and %d: %q, want %q", i, j, got, want)
				}
			}
		}
		s, got := r.Stream(), []byte(nil)
		for i := range body {
			got = append(got, s.Write(body[i:i+1])...)
		}
		if got = append(got, s.Flush()...); string(got) != want {
			t.Fatalf("byte by byte: %q, want %q", got, want)
		}
	}
}

func TestStreamOverlaps(t *testing.T) {
	r := NewRedactor(nil, value(t, "abababab"))
	for _, body := range []string{"abababababab", "xabababababx", "aabababab", "abababaabababab", "ababababaababababab"} {
		want := r.Text(body)
		for i := range len(body) + 1 {
			s := r.Stream()
			got := string(s.Write([]byte(body[:i])))
			got += string(s.Write([]byte(body[i:])))
			got += string(s.Flush())
			if got != want {
				t.Errorf("%q split at %d: %q, want %q", body, i, got, want)
			}
		}
	}
}

func TestStreamPassesWhatIsInnocent(t *testing.T) {
	r := NewRedactor(nil, value(t, canary))
	s := r.Stream()
	body := bytes.Repeat([]byte("\x00\xffdata s3cr3 t"), 5000)
	var got []byte
	for rest := body; len(rest) > 0; {
		n := min(997, len(rest))
		got = append(got, s.Write(rest[:n])...)
		rest = rest[n:]
		if len(s.pending) > 256 {
			t.Fatalf("%d bytes are held back", len(s.pending))
		}
	}
	if got = append(got, s.Flush()...); !bytes.Equal(got, body) {
		t.Error("an innocent body was changed")
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("abc abababab x"), 3)
	f.Fuzz(func(t *testing.T, body []byte, cut int) {
		r := NewRedactor(nil, value(t, "abababab"))
		want := r.Text(string(body))
		s := r.Stream()
		var got []byte
		step := max(1, cut%7)
		for rest := body; len(rest) > 0; {
			n := min(step, len(rest))
			got = append(got, s.Write(rest[:n])...)
			rest = rest[n:]
		}
		got = append(got, s.Flush()...)
		if string(got) != want || strings.Contains(string(got), "abababab") {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

func BenchmarkStream(b *testing.B) {
	r := NewRedactor(nil, value(b, canary))
	chunk := bytes.Repeat([]byte("some innocent body text s3 "), 1300)[:32<<10]
	b.SetBytes(int64(len(chunk)))
	s := r.Stream()
	for b.Loop() {
		s.Write(chunk)
	}
}
