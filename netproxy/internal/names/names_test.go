package names

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCanonical(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, tc := range []struct {
		in, want string // "" = refused
	}{
		{"good.com", "good.com"},
		{"good.com.", "good.com"},
		{"good.com..", ""},
		{"GOOD.Com", "good.com"},
		{"a-b.good.com", "a-b.good.com"},
		{"r3---sn-x.good.com", "r3---sn-x.good.com"},
		{"münchen.de", "xn--mnchen-3ya.de"},
		{"MÜNCHEN.de", "xn--mnchen-3ya.de"},
		{"xn--mnchen-3ya.de", "xn--mnchen-3ya.de"},
		{"XN--MNCHEN-3YA.de", "xn--mnchen-3ya.de"},
		{"good。com", "good.com"},
		{"good.com", "good.com"},
		{"xn--a.com", ""},
		{"xn--.com", ""},
		{"good.com%61", ""},
		{"go%6fd.com", ""},
		{"good.com@evil.com", ""},
		{"evil.com#@good.com", ""},
		{"good.com\\evil.com", ""},
		{"good.com/evil", ""},
		{"good.com\tevil", ""},
		{"good.com\x00.evil", ""},
		{"good.com ", ""},
		{" good.com", ""},
		{"good.com\n", ""},
		{"good_com", ""},
		{"_dmarc.good.com", ""},
		{"-good.com", ""},
		{"good-.com", ""},
		{"good..com", ""},
		{".good.com", ""},
		{".", ""},
		{"", ""},
		{long + ".com", long + ".com"},
		{long + "a.com", ""},
		{strings.Repeat(long+".", 4) + "com", ""},
		{"localhost", "localhost"},
		{"127.0.0.1", "127.0.0.1"},
		{"127.0.0.1.", "127.0.0.1"},
		{"2130706433", ""},
		{"0x7f.1", ""},
		{"0x7f000001", ""},
		{"0X7F000001", ""},
		{"0177.0.0.1", ""},
		{"127.1", ""},
		{"127.0.0.01", ""},
		{"1.2.3.4.5", ""},
		{"good.com.1", ""},
		{"good.0x", ""},
		{"1.2.3.com", "1.2.3.com"},
		{"١٢٧.0.0.1", ""},
		{"127.0.0.1", "127.0.0.1"},
		{"[::1]", "::1"},
		{"[::]", "::"},
		{"[2606:4700::1111]", "2606:4700::1111"},
		{"[2606:4700::1111]x", ""},
		{"[0:0:0:0:0:0:0:1]", ""},
		{"[::ffff:127.0.0.1]", ""},
		{"[::ffff:7f00:1]", ""},
		{"[fe80::1%25eth0]", ""},
		{"[fe80::1%eth0]", ""},
		{"[127.0.0.1]", ""},
		{"[::1", ""},
		{"::1", ""},
		{"good.com:443", ""},
		{"a\u200db.com", ""},
		{"good.com\u00ad", "good.com"}, // IDNA maps a soft hyphen to nothing
	} {
		got, err := Canonical(tc.in)
		if tc.want == "" {
			if err == nil {
				t.Errorf("Canonical(%q) = %q, want a refusal", tc.in, got.Name)
			}
			continue
		}
		if err != nil || got.Name != tc.want {
			t.Errorf("Canonical(%q) = %q, %v; want %q", tc.in, got.Name, err, tc.want)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{"good.com", "xn--mnchen-3ya.de", "127.0.0.1", "[::1]", "0x7f.1", "a。b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := Canonical(s)
		if err != nil {
			return
		}
		text := h.Name
		if h.IP.Is6() {
			text = "[" + text + "]"
		}
		again, err := Canonical(text)
		if err != nil || again != h {
			t.Fatalf("Canonical(%q) = %q, and of that again %q, %v", s, h.Name, again.Name, err)
		}
		if ip, err := netip.ParseAddr(h.Name); (err == nil) != h.IP.IsValid() || err == nil && ip != h.IP {
			t.Fatalf("Canonical(%q) = %q hides an address", s, h.Name)
		}
	})
}

func TestSplitHostPort(t *testing.T) {
	for _, tc := range []struct {
		in   string
		def  uint16
		host string
		port uint16
	}{
		{"good.com:443", 0, "good.com", 443},
		{"good.com", 443, "good.com", 443},
		{"good.com:8443", 443, "good.com", 8443},
		{"[2606:4700::1]:443", 0, "2606:4700::1", 443},
		{"[2606:4700::1]", 80, "2606:4700::1", 80},
		{"good.com", 0, "", 0},
		{"good.com:", 443, "", 0},
		{"good.com:0", 443, "", 0},
		{"good.com:0443", 443, "", 0},
		{"good.com:+443", 443, "", 0},
		{"good.com:65536", 443, "", 0},
		{"good.com:99999999999", 443, "", 0},
		{"good.com:４４３", 443, "", 0},
		{"user@good.com:443", 0, "", 0},
		{"good.com:443:443", 0, "", 0},
		{"::1:443", 0, "", 0},
		{":443", 0, "", 0},
	} {
		h, p, err := SplitHostPort(tc.in, tc.def)
		if tc.host == "" {
			if err == nil {
				t.Errorf("SplitHostPort(%q) = %q %d, want a refusal", tc.in, h.Name, p)
			}
		} else if err != nil || h.Name != tc.host || p != tc.port {
			t.Errorf("SplitHostPort(%q) = %q %d %v", tc.in, h.Name, p, err)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, tc := range []struct {
		host, pattern string
		want          bool
	}{
		{"good.com", "good.com", true},
		{"evilgood.com", "good.com", false},
		{"good.com.evil", "good.com", false},
		{"a.good.com", "good.com", false},
		{"a.good.com", "*.good.com", true},
		{"a.b.good.com", "*.good.com", true},
		{"good.com", "*.good.com", false},
		{"evilgood.com", "*.good.com", false},
		{"good.com", "*.com", true},
		{"good.com", "*.", false},
		{"good.com", "*", false},
		{"1.2.3.4", "*.3.4", false},
		{"1.2.3.4", "1.2.3.4", true},
	} {
		h, err := Canonical(tc.host)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.Match(tc.pattern); got != tc.want {
			t.Errorf("%q matches %q: %v", tc.host, tc.pattern, got)
		}
	}
}

func TestPublic(t *testing.T) {
	for ip, want := range map[string]bool{
		"1.1.1.1": true, "8.8.8.8": true, "100.63.255.255": true, "100.128.0.0": true,
		"172.15.0.1": true, "172.32.0.1": true, "192.169.0.1": true, "198.17.255.255": true,
		"198.20.0.1": true, "223.255.255.255": true, "192.0.1.1": true, "11.0.0.1": true,
		"2606:4700:4700::1111": true, "2a00:1450::1": true, "2001:200::1": true, "::ffff:1.1.1.1": true,
		"0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "100.64.0.1": false,
		"100.100.100.200": false, "127.0.0.1": false, "127.255.255.254": false,
		"169.254.169.254": false, "169.254.170.2": false, "172.16.0.1": false, "172.31.255.255": false,
		"192.0.0.1": false, "192.0.0.192": false, "192.0.2.1": false, "192.31.196.1": false,
		"192.52.193.1": false, "192.88.99.1": false, "192.168.0.1": false, "192.175.48.1": false,
		"198.18.0.1": false, "198.19.255.255": false, "198.51.100.1": false, "203.0.113.1": false,
		"224.0.0.1": false, "239.255.255.250": false, "240.0.0.1": false, "255.255.255.255": false,
		"168.63.129.16": false,
		"::":            false, "::1": false, "::127.0.0.1": false, "::1.1.1.1": false,
		"::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::ffff:0:1.1.1.1": false,
		"64:ff9b::1.1.1.1": false, "64:ff9b::7f00:1": false, "64:ff9b:1::1": false,
		"100::1": false, "2001::1": false, "2001:0:7f00:1::": false, "2001:2::1": false,
		"2001:20::1": false, "2001:1ff::1": false, "2001:db8::1": false, "2002:7f00:1::": false,
		"2002:101:101::1": false, "2620:4f:8000::1": false, "3fff::1": false, "3fff:fff::1": false,
		"4000::1": false, "5f00::1": false, "fc00::1": false, "fd00:ec2::254": false,
		"fe80::1": false, "fe80::1%eth0": false, "2606:4700::1%eth0": false, "fec0::1": false, "ff02::1": false,
	} {
		if got := Public(netip.MustParseAddr(ip)); got != want {
			t.Errorf("Public(%s) = %v, want %v", ip, got, want)
		}
	}
}

func TestVetter(t *testing.T) {
	addr := netip.MustParseAddr
	v := Vetter{
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("224.0.0.0/4")},
		Exact:  []netip.Addr{addr("127.0.0.1"), addr("0.0.0.0")},
		Own:    func(ip netip.Addr) bool { return ip == addr("9.9.9.9") },
	}
	for ip, want := range map[string]bool{
		"1.1.1.1": true, "10.1.2.3": true, "10.2.0.1": false, "127.0.0.1": true, "127.0.0.2": false,
		"::ffff:10.1.2.3": true, "9.9.9.9": false, "224.0.0.1": false, "0.0.0.0": false,
		"::ffff:0.0.0.0": false, "255.255.255.255": false, "::": false,
	} {
		if got := v.Allowed(addr(ip)); got != want {
			t.Errorf("Allowed(%s) = %v, want %v", ip, got, want)
		}
	}
	if v.AllowedAll(nil) {
		t.Error("no address at all was allowed")
	}
	if v.AllowedAll([]netip.Addr{addr("1.1.1.1"), addr("169.254.169.254")}) {
		t.Error("one good answer hid a bad one")
	}
	if !OwnAddress(addr("127.0.0.1")) {
		t.Error("a loopback address is not seen as our own")
	}
}
