package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"sandboxd/policy"
)

// mask is what a removed byte becomes. The length stays, so that a length that
// was announced stays true.
const mask = '*'

// A Redactor knows the forms in which credentials may come back: raw, in the
// injected form, base64 (standard and URL alphabet, wherever the value stands
// in the encoded text), URL-encoded, hexadecimal and JSON-escaped.
type Redactor struct {
	forms [][]byte
	m     *matcher
	lower *matcher // of the forms in lower case
}

// An Injected is a value as a rule sends it.
type Injected struct {
	As    *policy.Injection // nil: no form of its own
	Value Value
}

// NewRedactor prepares the forms of one credential as it is injected.
func NewRedactor(in *policy.Injection, v Value) *Redactor {
	return NewRedactorOf([]Injected{{in, v}})
}

// NewRedactorOf prepares the forms of several.
func NewRedactorOf(list []Injected) *Redactor {
	r := &Redactor{}
	for _, i := range list {
		for _, v := range i.parts() {
			r.addValue(i.As, v)
		}
	}
	r.m = newMatcher(r.forms)
	lower := make([][]byte, len(r.forms))
	for i, f := range r.forms {
		lower[i] = bytes.ToLower(f)
	}
	r.lower = newMatcher(lower)
	return r
}

// Empty reports whether there is nothing to look for.
func (r *Redactor) Empty() bool { return len(r.forms) == 0 }

func (r *Redactor) addValue(in *policy.Injection, b []byte) {
	r.add(b)
	if in != nil && in.As == policy.AsBasic {
		pair := basic(in.Username, b)
		r.addText(pair)
		r.addText(strings.NewReplacer("+", "-", "/", "_").Replace(pair))
	}
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		r.addBase64(e, b)
	}
	r.addText(hex.EncodeToString(b))
	r.addText(strings.ToUpper(hex.EncodeToString(b)))
	for _, escaped := range []string{url.QueryEscape(string(b)), url.PathEscape(string(b)), percent(b)} {
		r.addText(escaped)
		r.addText(lowerEscapes(escaped))
	}
	if quoted, err := json.Marshal(string(b)); err == nil && len(quoted) > 2 {
		r.add(quoted[1 : len(quoted)-1])
		r.add(bytes.ReplaceAll(quoted[1:len(quoted)-1], []byte("/"), []byte(`\/`)))
	}
}

func (r *Redactor) addText(s string) { r.add([]byte(s)) }

func (r *Redactor) add(form []byte) {
	if len(form) < MinLength || slices.ContainsFunc(r.forms, func(f []byte) bool { return bytes.Equal(f, form) }) {
		return
	}
	r.forms = append(r.forms, form)
}

// addBase64 adds the value's base64 for each of the three places where it may
// stand in a longer text. Characters that also carry neighbouring bits are
// left out: they differ with the neighbour.
func (r *Redactor) addBase64(e *base64.Encoding, b []byte) {
	for before := range 3 {
		encoded := e.EncodeToString(append(make([]byte, before), b...))
		first := (before*8 + 5) / 6
		last := (before + len(b)) * 8 / 6
		r.addText(encoded[first:last])
	}
}

// percent encodes every byte.
func percent(b []byte) string {
	var out strings.Builder
	for _, c := range b {
		out.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
	}
	return out.String()
}

// lowerEscapes writes the digits of %XX in lower case.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], bytes.ToLower(b[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

// Text returns s without the credentials, for header fields.
func (r *Redactor) Text(s string) string {
	if len(s) < r.m.least || len(r.forms) == 0 {
		return s
	}
	b := []byte(s)
	if !r.cover(b, []byte(s)) {
		return s
	}
	return string(b)
}

// Names reports whether s holds a credential in whatever case: names of header
// fields change theirs on the way.
func (r *Redactor) Names(s string) (found bool) {
	if len(s) < r.lower.least || len(r.forms) == 0 {
		return false
	}
	r.lower.each([]byte(strings.ToLower(s)), func(int, int) { found = true })
	return found
}

// cover masks in dst every form found in src, its copy. The original is looked
// at throughout: masking one form must not hide another that overlaps it.
func (r *Redactor) cover(dst, src []byte) bool {
	found := false
	r.m.each(src, func(at, length int) {
		found = true
		for i := at; i < min(at+length, len(dst)); i++ {
			dst[i] = mask
		}
	})
	return found
}

// A Stream redacts a body that comes in pieces.
type Stream struct {
	r       *Redactor
	pending []byte // original bytes that may be the beginning of a form
	out     []byte
	masked  int // of pending, leading bytes that belong to a form found
}

// Stream starts a body.
func (r *Redactor) Stream() *Stream { return &Stream{r: r} }

// Use goes on with another Redactor, whose forms are looked for in what has not
// been passed on yet.
func (s *Stream) Use(r *Redactor) { s.r = r }

// Write takes the next piece and returns what can be passed on. The result is
// valid until the next call.
func (s *Stream) Write(p []byte) []byte {
	s.pending = append(s.pending, p...)
	return s.emit(len(s.pending) - s.r.m.held(s.pending))
}

// Flush returns the rest at the body's end.
func (s *Stream) Flush() []byte { return s.emit(len(s.pending)) }

func (s *Stream) emit(n int) []byte {
	if n <= 0 {
		return nil
	}
	s.out = append(s.out[:0], s.pending[:n]...)
	for i := range min(s.masked, n) {
		s.out[i] = mask
	}
	// A form that was found may reach into what is held back.
	s.masked = max(0, s.masked-n)
	s.r.m.each(s.pending, func(at, length int) {
		if at >= n {
			return
		}
		for i := at; i < min(at+length, n); i++ {
			s.out[i] = mask
		}
		s.masked = max(s.masked, at+length-n)
	})
	s.pending = append(s.pending[:0], s.pending[n:]...)
	return s.out
}
