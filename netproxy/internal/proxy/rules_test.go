package proxy

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/netproxy/internal/names"
	"sandboxd/policy"
)

func set(t testing.TB, rules ...policy.Rule) *ruleset {
	t.Helper()
	s, err := compile(rules, nil, func(*rule) *pool { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func host(t testing.TB, s string) names.Host {
	t.Helper()
	h, err := names.Canonical(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var token = &policy.Injection{Name: "token", As: "bearer"}

func TestRequestRules(t *testing.T) {
	s := set(t,
		policy.Rule{ID: "read", Host: "api.test", Methods: []string{"GET"}, Paths: []string{"/v1/*", "/exact"}, Credential: token},
		policy.Rule{ID: "write", Host: "api.test", Methods: []string{"POST"}, Paths: []string{"/v1/items"}},
		policy.Rule{ID: "wild", Host: "*.Example.test.", Ports: []uint16{443, 8443}},
		policy.Rule{ID: "mirror", Host: "mirror.test", Scheme: "http"},
		policy.Rule{ID: "idn", Host: "münchen.test"},
		policy.Rule{ID: "ip", Host: "10.1.2.3"},
	)
	for _, tc := range []struct {
		scheme, host string
		port         uint16
		method, path string
		id, why      string
	}{
		{"https", "api.test", 443, "GET", "/v1/a", "read", ""},
		{"https", "api.test", 443, "GET", "/v1/", "read", ""},
		{"https", "api.test", 443, "GET", "/v1", "", "path_denied"},
		{"https", "api.test", 443, "GET", "/exact", "read", ""},
		{"https", "api.test", 443, "GET", "/exact/", "", "path_denied"},
		{"https", "api.test", 443, "POST", "/v1/items", "write", ""},
		{"https", "api.test", 443, "POST", "/v1/items/", "", "path_denied"},
		{"https", "api.test", 443, "DELETE", "/v1/items", "", "method_denied"},
		{"https", "api.test", 443, "get", "/v1/a", "", "method_denied"},
		{"https", "api.test", 8443, "GET", "/v1/a", "", "port_denied"},
		{"http", "api.test", 80, "GET", "/v1/a", "", "scheme_denied"},
		{"https", "x.api.test", 443, "GET", "/v1/a", "", "no_rule"},
		{"https", "a.example.test", 8443, "PUT", "/", "wild", ""},
		{"https", "a.b.EXAMPLE.test.", 443, "PUT", "/", "wild", ""},
		{"https", "example.test", 443, "GET", "/", "", "no_rule"},
		{"http", "mirror.test", 80, "GET", "/", "mirror", ""},
		{"https", "mirror.test", 443, "GET", "/", "", "scheme_denied"},
		{"https", "xn--mnchen-3ya.test", 443, "GET", "/", "idn", ""},
		{"https", "10.1.2.3", 443, "GET", "/", "ip", ""},
		{"https", "10.1.2.4", 443, "GET", "/", "", "no_rule"},
	} {
		g, why := s.request(tc.scheme, host(t, tc.host), tc.port, tc.method, tc.path)
		if (g == nil) != (tc.id == "") || g != nil && g.ID != tc.id || why != tc.why {
			t.Errorf("%+v: got %v %q", tc, g, why)
		}
	}
	for _, tc := range []struct {
		host      string
		intercept bool
		why       string
	}{{"api.test", true, ""}, {"a.example.test", false, ""}, {"mirror.test", false, "scheme_denied"}, {"evil.test", false, "no_rule"}} {
		g, intercept, why := s.tunnel("https", host(t, tc.host), 443)
		if (g == nil) != (tc.why != "") || intercept != tc.intercept || why != tc.why {
			t.Errorf("tunnel %+v: got %v %v %q", tc, g, intercept, why)
		}
	}
	if s.knows(host(t, "mirror.test")) == nil || s.knows(host(t, "evil.test")) != nil {
		t.Error("knows")
	}
}

func TestNoRulesGrantNothing(t *testing.T) {
	for name, s := range map[string]*ruleset{"nil": nil, "empty": set(t), "zero": {}} {
		if g, why := s.request("https", host(t, "a.test"), 443, "GET", "/"); g != nil || why != "no_rule" {
			t.Errorf("%s: request %v %q", name, g, why)
		}
		if g, _, why := s.tunnel("https", host(t, "a.test"), 443); g != nil || why != "no_rule" {
			t.Errorf("%s: tunnel %v %q", name, g, why)
		}
		if s.knows(host(t, "a.test")) != nil {
			t.Errorf("%s: knows a name", name)
		}
	}
}

func TestBadRules(t *testing.T) {
	for name, r := range map[string]policy.Rule{
		"no host": {}, "star": {Host: "*"}, "star in the middle": {Host: "a.*.test"}, "star dot": {Host: "*."},
		"wildcard of an address": {Host: "*.1.2.3.4"}, "URL": {Host: "https://a.test"}, "port": {Host: "a.test:443"},
		"scheme":               {Host: "a.test", Scheme: "ftp"},
		"cleartext credential": {Host: "a.test", Scheme: "http", Credential: token},
		"bad credential":       {Host: "a.test", Credential: &policy.Injection{Name: "a", As: "x"}},
	} {
		if _, err := compile([]policy.Rule{r}, nil, func(*rule) *pool { return nil }); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// A rule that stays as it is keeps its identity, and with it its connections.
func TestRulesKeepTheirIdentity(t *testing.T) {
	a, b := policy.Rule{ID: "a", Host: "a.test", Credential: token}, policy.Rule{ID: "b", Host: "b.test"}
	old := set(t, a, b)
	b.Ports = []uint16{8443}
	now, err := compile([]policy.Rule{b, a}, old, func(*rule) *pool { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if now.rules[1] != old.rules[0] || now.rules[0] == old.rules[1] {
		t.Error("identity was lost, or kept through a change")
	}
}

func TestCheckPath(t *testing.T) {
	for path, want := range map[string][2]bool{
		"/": {true, true}, "/a/b.c": {true, true}, "/a%20b": {true, true}, "/%C3%A9": {true, true}, "/a:b@c!$&'()*+,=": {true, true},
		"/a%3Fb": {true, true}, "/~a_b-c": {true, true}, "/.well-known/x": {true, true}, "/...": {true, true},
		"/a//b": {true, false}, "/a/": {true, true}, "/./a": {true, false}, "/a/..": {true, false}, "/a/../b": {true, false},
		"/%2e%2e/a": {true, false}, "/a%2Fb": {true, false}, "/a%2fb": {true, false}, "/a%5Cb": {true, false}, `/a\b`: {true, false},
		"/a;b": {true, false}, "/a%3Bb": {true, false}, "/%61": {true, false}, "/%2561": {true, false}, "/%c3%a9": {true, false}, "/%00": {true, false},
		"/a%7Eb": {true, false},
		"":       {}, "a": {}, "//a": {}, "/a b": {}, "/%": {}, "/%4": {}, "/%zz": {}, "/é": {}, "/\x00": {}, "/\x7f": {}, "*": {},
	} {
		if ok, canonical := checkPath(path); ok != want[0] || canonical != want[1] {
			t.Errorf("%q: %v %v, want %v", path, ok, canonical, want)
		}
	}
}

func TestAuthority(t *testing.T) {
	kept := func() *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), "kept"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	alices := kept()
	a, err := newAuthority("alice", alices)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newAuthority("bob", kept())
	if err != nil {
		t.Fatal(err)
	}
	again, err := newAuthority("alice", alices)
	if err != nil || !again.key.Equal(a.key) || string(again.pem) != string(a.pem) {
		t.Errorf("taken up again: %v", err)
	}
	spoilt := kept()
	if _, err := spoilt.WriteString("-----BEGIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := newAuthority("alice", spoilt); err == nil {
		t.Error("a spoilt file was taken")
	}
	leaf, err := a.leafFor(host(t, "api.test"))
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := a.leafFor(host(t, "api.test")); again != leaf {
		t.Error("the leaf was minted twice")
	}
	cert, err := x509.ParseCertificate(leaf.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	verify := func(root *x509.Certificate, name string) error {
		pool := x509.NewCertPool()
		pool.AddCert(root)
		_, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: name})
		return err
	}
	if err := verify(a.cert, "api.test"); err != nil {
		t.Error(err)
	}
	if verify(a.cert, "x.api.test") == nil || verify(b.cert, "api.test") == nil {
		t.Error("the leaf holds for another name, or another tenant")
	}
	if cert.IsCA || !a.cert.MaxPathLenZero || a.cert.NotAfter.After(time.Now().Add(10*24*time.Hour)) {
		t.Error("the certificates can do too much")
	}
	ip, err := a.leafFor(host(t, "10.1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(ip.Certificate[0]); err != nil || verify(a.cert, "10.1.2.3") != nil {
		t.Error("no leaf for an address")
	}
	for i := range maxLeaves + 10 {
		if _, err := a.leafFor(names.Host{Name: "h" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ".test"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.leaves) > maxLeaves {
		t.Errorf("%d leaves are kept", len(a.leaves))
	}
}

func TestHostOnlyCookies(t *testing.T) {
	for in, want := range map[string]string{
		"a=b":                                "a=b",
		"a=b; Domain=localhost; Path=/":      "a=b; Path=/",
		"a=b; domain = .localhost ;Secure":   "a=b;Secure",
		"a=b;DOMAIN=x;SameSite=Lax;domain=y": "a=b;SameSite=Lax",
		"sandboxd_session=x; Path=/":         "",
		"__Host-sandboxd=x; Path=/; Secure":  "",
		"__Host-mine=x; Path=/; Secure":      "__Host-mine=x; Path=/; Secure",
		"a=domain; Path=/domain":             "a=domain; Path=/domain",
	} {
		if got := hostOnly(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// What no rule can grant must not send a person to the operator for one.
func TestRefusalsOfferOnlyRulesThatHelp(t *testing.T) {
	for why, helps := range map[string]bool{"no_rule": true, "port_denied": true, "method_denied": true, "upgrade_denied": false, "cleartext": false} {
		r := denied(why, "http", host(t, "a.test"), 80, "GET", "/")
		if (r.rule != "") != helps || r.message == "" || r.hint == "" {
			t.Errorf("%s: rule %q, message %q, hint %q", why, r.rule, r.message, r.hint)
		}
		if why != "no_rule" && !strings.Contains(r.message, "is granted") {
			t.Errorf("%s: %q says that the host is not granted, and it is", why, r.message)
		}
	}
}
