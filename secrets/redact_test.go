package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"sandboxd/policy"
)

// randomValue is of bytes that a value may have.
func randomValue(rng *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		if b[i] = byte(' ' + rng.IntN(256-' ')); b[i] == 0x7f {
			b[i] = '~'
		}
	}
	return string(b)
}

// TestNoFormPassesAnyBorder places the values of several credentials, in every
// form, at random places of a body that comes in random pieces.
func TestNoFormPassesAnyBorder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 100 {
		var list []Injected
		var values []string
		for range 1 + rng.IntN(3) {
			v := randomValue(rng, MinLength+rng.IntN(60))
			values = append(values, v)
			list = append(list, Injected{&policy.Injection{Name: "a", As: policy.AsBasic, Username: "user"}, value(t, v)})
		}
		r := NewRedactorOf(list)
		var body []byte
		for range 1 + rng.IntN(6) {
			body = append(body, randomValue(rng, rng.IntN(40))...)
			v := values[rng.IntN(len(values))]
			body = append(body, []string{
				v, hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v))), url.QueryEscape(v), url.PathEscape(v),
				base64.StdEncoding.EncodeToString([]byte("user:" + v)), base64.URLEncoding.EncodeToString([]byte("xy" + v + "z")),
			}[rng.IntN(7)]...)
		}
		want := r.Text(string(body))
		for _, v := range values {
			if len(v) >= 14 && leaks([]byte(want), v) { // of a shorter one too little base64 is left to tell
				t.Fatalf("round %d: %q leaks from %q", round, v, want)
			}
		}
		s, got := r.Stream(), []byte(nil)
		for rest := body; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(1+rng.IntN(40)))
			if rng.IntN(5) == 0 {
				s.Use(NewRedactorOf(list)) // another one with the same forms
			}
			got = append(got, s.Write(rest[:n])...)
			rest = rest[n:]
		}
		got = append(got, s.Flush()...)
		if string(got) != want || len(want) != len(body) {
			t.Fatalf("round %d: in pieces\n%q, as a whole\n%q", round, got, want)
		}
	}
}

// TestMatcherAgainstTheSimpleWay holds the search that skips against one that
// looks everywhere.
func TestMatcherAgainstTheSimpleWay(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	word := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab\xff"[rng.IntN(3)]
		}
		return b
	}
	for range 2000 {
		var forms [][]byte
		for range 1 + rng.IntN(4) {
			forms = append(forms, word(2+rng.IntN(6)))
		}
		text := word(rng.IntN(60))
		type place struct{ at, length int }
		want, got := map[place]int{}, map[place]int{}
		for _, f := range forms {
			for at := range text {
				if bytes.HasPrefix(text[at:], f) {
					want[place{at, len(f)}]++
				}
			}
		}
		newMatcher(forms).each(text, func(at, length int) { got[place{at, length}]++ })
		if len(got) != len(want) {
			t.Fatalf("%q in %q: %v, want %v", forms, text, got, want)
		}
		for p, n := range want {
			if got[p] != n {
				t.Fatalf("%q in %q: %v, want %v", forms, text, got, want)
			}
		}
	}
}

func TestNamesInAnyCase(t *testing.T) {
	r := NewRedactor(nil, value(t, "MixedCase-Value"))
	for name, want := range map[string]bool{
		"X-Mixedcase-Value": true, "mixedcase-value": true, "MIXEDCASE-VALUE-1": true, "Mixedcase": false, "Content-Type": false, "": false,
	} {
		if r.Names(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	empty := NewRedactorOf(nil)
	if empty.Names("x") || empty.Text("anything at all") != "anything at all" || !empty.Empty() || string(empty.Stream().Write([]byte("abc"))) != "abc" {
		t.Error("without values something is found")
	}
}
