package web

import (
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseURL(t *testing.T) {
	base, long := "http://h/a/b", "http://"+strings.Repeat("a", 10000)+"/"
	for _, c := range []struct {
		input string
		base  *string
		want  string // the record, empty if there is none
	}{
		{"HTTPS://u:p@Bücher.example:443/a b?x#y", nil, "https://u:p@xn--bcher-kva.example/a%20b?x#y|https://xn--bcher-kva.example|https:|u|p|xn--bcher-kva.example|xn--bcher-kva.example||/a%20b|?x|#y"},
		{"../c", &base, "http://h/c|http://h|http:|||h|h||/c||"},
		{"http://0x7f.1/", nil, "http://127.0.0.1/|http://127.0.0.1|http:|||127.0.0.1|127.0.0.1||/||"},
		{"blob:https://a/b", nil, "blob:https://a/b|https://a|blob:|||||" + "|https://a/b||"},
		{"x:y", nil, "x:y|null|x:||||||y||"},
		{"/c", nil, ""},
		{"http://" + strings.Repeat("@", 10000) + "h", nil, ""},
		{"http://h/" + strings.Repeat("a/", 10000), nil, ""},
		{"http://h/a", &long, ""},
		{"http://h/?" + strings.Repeat("@", 10000), nil, "http://h/?" + strings.Repeat("@", 10000) + "|http://h|http:|||h|h||/|?" + strings.Repeat("@", 10000) + "|"},
		{"data:," + strings.Repeat("/", 10000), nil, "data:," + strings.Repeat("/", 10000) + "|null|data:||||||," + strings.Repeat("/", 10000) + "||"},
		{"http://h/" + strings.Repeat("a", maxURL), nil, ""},
	} {
		got, err := ParseURL(c.input, c.base)
		if got = strings.ReplaceAll(got, "\n", "|"); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%.60q: %.200q, %v", c.input, got, err)
		}
	}
}

func TestSetURL(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"host", "i:81", "http://i:81/p"}, {"hostname", "a b", "http://h/p"}, {"port", "8x", "http://h:8/p"}, {"protocol", "wss", "wss://h/p"},
		{"protocol", "x", "http://h/p"}, {"username", "ü", "http://%C3%BC@h/p"}, {"password", ":", "http://:%3A@h/p"}, {"pathname", "a/../b c", "http://h/b%20c"},
		{"search", "a=ü", "http://h/p?a=%C3%BC"}, {"hash", "#z", "http://h/p#z"}, {"host", strings.Repeat("@", 10000), "http://h/p"}, {"pathname", strings.Repeat("a/", 10000), "http://h/p"}, {"pathname", "?" + strings.Repeat("a", 10000), "http://h/p"}, {"no such", "x", "http://h/p"},
	} {
		got, err := SetURL("http://h/p", c.name, c.value)
		if href, _, _ := strings.Cut(got, "\n"); err != nil || href != c.want {
			t.Errorf("%s = %.20q: %q, %v", c.name, c.value, href, err)
		}
	}
}

// read is for those whom it does not matter how far Decode is.
func read(int, int) {}

func TestDecode(t *testing.T) {
	for _, c := range []struct {
		bytes, name, want string
		strict            bool // the same with strict
	}{
		{"a\xe2\x82\xac", "utf-8", "a€", true},
		{"\xe2\x82a\xff\xf0\x9f\x98", "utf-8", "\uFFFDa\uFFFD\uFFFD", false},
		{"\xed\xa0\x80", "utf-8", "\uFFFD\uFFFD\uFFFD", false},
		{"a\x00\x3d\xd8\x00\xde", "utf-16le", "a😀", true},
		{"\xd8\x3d\x00a\x00", "utf-16be", "\uFFFDa\uFFFD", false},
		{"\x80\xe9", "windows-1252", "€é", true},
		{"\x80\xe9", "iso-8859-2", "\u0080é", true},
		{"\x82\xa0\xff", "shift_jis", "あ\uFFFD", false},
	} {
		got, ok := Decode([]byte(c.bytes), c.name, false, read)
		if _, strict := Decode([]byte(c.bytes), c.name, true, read); got != c.want || !ok || strict != c.strict {
			t.Errorf("%q as %s: %q %v, strict %v", c.bytes, c.name, got, ok, strict)
		}
	}
	if _, ok := Decode(nil, "no such", false, read); ok {
		t.Error("an encoding that there is not")
	}
	for label, want := range map[string]string{"latin1": "windows-1252", "sjis": "shift_jis", "iso-2022-kr": "", " utf-8": "", "utf-7": "", "": ""} {
		if got := EncodingName(label); got != want {
			t.Errorf("label %q is %q", label, got)
		}
	}
	for _, c := range []struct {
		bytes, name string
		want        int
	}{{"a\x82", "shift_jis", 1}, {"a\x82\xa0", "shift_jis", 0}, {strings.Repeat("a", 10000) + "\x81\x30\x81", "gb18030", 3}, {"", "gbk", 0}, {"\xff\xff", "euc-kr", 0}} {
		if got := Incomplete([]byte(c.bytes), c.name, func(int) {}); got != c.want {
			t.Errorf("%d bytes at the end of %s wait, want %d", got, c.name, c.want)
		}
	}
	if got := ScalarValues("a\xed\xa0\x80\xed\xb0\x80b€"); got != "a\uFFFD\uFFFDb€" {
		t.Errorf("scalar values %q", got)
	}
}

// TestDecodePieces: what is longer than a piece comes out as if there were none,
// wherever they end, and the caller hears of each.
func TestDecodePieces(t *testing.T) {
	for name, unit := range map[string]string{
		"utf-8": "a€😀\xe2\x82\xf0\x9f\x98\xff", "utf-16le": "a\x00\x3d\xd8\x00\xde\x3d\xd8b\x00", "utf-16be": "\xd8\x3d\xde\x00\x00a",
		"windows-1252": "\x80\x81é", "iso-8859-2": "\x80\xe9", "shift_jis": "\x82\xa0a\xff", "gb18030": "\x81\x30\x81\x30a", "euc-kr": "\xb0\xa1a",
		"big5": "\xa4\x40a", "iso-2022-jp": "\x1b$B$\"$\"\x1b(Ba",
	} {
		for shift := range 4 {
			begin := strings.Repeat("a", shift)
			if strings.HasPrefix(name, "utf-16") {
				begin = strings.Repeat("\x00a", shift)
			}
			one, ok := Decode([]byte(unit), name, false, read)
			start, _ := Decode([]byte(begin), name, false, read)
			const times = 3 * Piece / 4
			heard, last := 0, 0
			got, ok2 := Decode([]byte(begin+strings.Repeat(unit, times)), name, false, func(read, text int) {
				if read <= 0 || read > Piece || text < last {
					t.Errorf("%s: a piece of %d bytes, %d of text after %d", name, read, text, last)
				}
				heard, last = heard+read, text
			})
			if want := start + strings.Repeat(one, times); !ok || !ok2 || got != want {
				t.Errorf("%s shifted by %d: %d bytes of text, want %d", name, shift, len(got), len(want))
			}
			if heard != len(begin)+times*len(unit) || last != len(got) {
				t.Errorf("%s: heard of %d bytes and %d of text", name, heard, last)
			}
			if _, strict := Decode([]byte(begin+strings.Repeat(unit, times)), name, true, read); strict != !strings.ContainsRune(one, utf8.RuneError) {
				t.Errorf("%s: strict %v", name, strict)
			}
		}
	}
}

// FuzzURL: whatever code gives, there is a record of eleven lines or none.
func FuzzURL(f *testing.F) {
	for _, s := range []string{"http://u:p@h:1/a?b#c", "x:y", "//h", "http://[::1]/", "http://1.2.3/", "file:///C|/", "http://ü/", "../a", "http://%41@@@/\\"} {
		f.Add(s, "http://h/", "host", s)
	}
	f.Fuzz(func(t *testing.T, input, base, name, value string) {
		if len(input)+len(base)+len(value) > 1<<14 {
			return
		}
		got, err := ParseURL(ScalarValues(input), &base)
		if err == nil {
			if n := strings.Count(got, "\n"); n != 10 {
				t.Errorf("%d line breaks in %q", n, got)
			}
			href, _, _ := strings.Cut(got, "\n")
			if got, err = SetURL(href, name, ScalarValues(value)); err != nil || strings.Count(got, "\n") != 10 {
				t.Errorf("%q.%s = %q: %q, %v", href, name, value, got, err)
			}
		}
	})
}

// FuzzDecode: text is always well-formed, and of UTF-8 what it was.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"utf-8", "utf-16le", "utf-16be", "windows-1252", "shift_jis", "gb18030", "iso-2022-jp", "big5", "euc-kr", "x-user-defined"} {
		f.Add([]byte("a\xe2\x82\xac\x1b$B\xff"), name)
	}
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		text, ok := Decode(b, name, false, read)
		if ok && !utf8.ValidString(text) {
			t.Errorf("%q as %s is %q", b, name, text)
		}
		if name == "utf-8" && utf8.Valid(b) && text != string(b) {
			t.Errorf("%q is %q", b, text)
		}
		if n := Incomplete(b, name, func(int) {}); n < 0 || n > len(b) {
			t.Errorf("%d of %d bytes wait", n, len(b))
		}
	})
}

// TestCost: the worst of each kind costs about what is said, and not much. What
// grows with a square does it by copying, so bytes allocated tell, whatever else
// the machine does.
func TestCost(t *testing.T) {
	for _, s := range []string{
		"http://h/" + strings.Repeat("é/", 4000), "http://h/" + strings.Repeat(strings.Repeat("a", 2000)+"/", 250), "http://h/" + strings.Repeat(strings.Repeat("a", 4)+"/", 5000), "file:///" + strings.Repeat("C|/", 2700),
		"http://" + strings.Repeat("@", maxAt) + "h", "http://u:" + strings.Repeat("é", maxSegment/2-10) + "@h", "x://" + strings.Repeat("é", maxSegment/2-10), "http://" + strings.Repeat("é", maxSegment/2-10),
		"data:," + strings.Repeat("é ", maxURL/4), "http://h/?" + strings.Repeat("é", maxURL/3), "http://h/" + strings.Repeat("/..", 2700), "http:" + strings.Repeat("/", maxURL), strings.Repeat("a", maxURL), strings.Repeat("a:", maxURL/2),
	} {
		most := uint64(10*Cost(s)) + 8<<20
		var record string
		if got := allocated(func() { record, _ = ParseURL(s, nil) }); got > most || got > 1<<30 {
			t.Errorf("%.20q of %d bytes allocates %d bytes", s, len(s), got)
		}
		if record == "" {
			continue
		}
		for _, name := range []string{"protocol", "username", "host", "pathname", "hash"} {
			got := allocated(func() {
				if _, err := SetURL(s, name, s[:min(len(s), maxAt)]); err != nil {
					t.Error(err)
				}
			})
			if got > 3*most || got > 1<<30 {
				t.Errorf("%.20q.%s allocates %d bytes", s, name, got)
			}
		}
	}
}

// allocated are the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
