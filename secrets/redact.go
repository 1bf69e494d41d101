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

// A Redactor knows the forms in which a credential may come back: raw, in the
// injected form, base64 (standard and URL alphabet, wherever the value stands
// in the encoded text), URL-encoded, hexadecimal and JSON-escaped.
type Redactor struct{ forms [][]byte }

// NewRedactor prepares the forms of one credential as it is injected.
func NewRedactor(in *policy.Injection, v Value) *Redactor {
	r := &Redactor{}
	r.add(v.bytes())
	if in != nil && in.As == "basic" {
		r.addText(basic(in.Username, v))
		r.addText(strings.NewReplacer("+", "-", "/", "_").Replace(basic(in.Username, v)))
	}
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		r.addBase64(e, v.bytes())
	}
	r.addText(hex.EncodeToString(v.bytes()))
	r.addText(strings.ToUpper(hex.EncodeToString(v.bytes())))
	for _, escaped := range []string{
		url.QueryEscape(string(v.bytes())), url.PathEscape(string(v.bytes())), percent(v.bytes()),
	} {
		r.addText(escaped)
		r.addText(lowerEscapes(escaped))
	}
	if quoted, err := json.Marshal(string(v.bytes())); err == nil && len(quoted) > 2 {
		r.add(quoted[1 : len(quoted)-1])
		r.add(bytes.ReplaceAll(quoted[1:len(quoted)-1], []byte("/"), []byte(`\/`)))
	}
	return r
}

func (r *Redactor) addText(s string) { r.add([]byte(s)) }

func (r *Redactor) add(form []byte) {
	if len(form) == 0 || slices.ContainsFunc(r.forms, func(f []byte) bool { return bytes.Equal(f, form) }) {
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

// Text returns s without the credential, for header fields.
func (r *Redactor) Text(s string) string {
	b := []byte(s)
	if !r.cover(b, []byte(s)) {
		return s
	}
	return string(b)
}

// cover masks in dst every form found in src, its copy. The original is looked
// at throughout: masking one form must not hide another that overlaps it.
func (r *Redactor) cover(dst, src []byte) bool {
	found := false
	for _, form := range r.forms {
		for at := 0; ; at++ {
			i := bytes.Index(src[at:], form)
			if i < 0 {
				break
			}
			at += i
			found = true
			for j := range form {
				dst[at+j] = mask
			}
		}
	}
	return found
}

// A Stream redacts a body that comes in pieces.
type Stream struct {
	r       *Redactor
	pending []byte // original bytes that may be the beginning of a form
	masked  int    // of pending, leading bytes that belong to a form found
}

// Stream starts a body.
func (r *Redactor) Stream() *Stream { return &Stream{r: r} }

// Write takes the next piece and returns what can be passed on. The result is
// valid until the next call.
func (s *Stream) Write(p []byte) []byte {
	s.pending = append(s.pending, p...)
	return s.emit(len(s.pending) - s.r.held(s.pending))
}

// Flush returns the rest at the body's end.
func (s *Stream) Flush() []byte { return s.emit(len(s.pending)) }

func (s *Stream) emit(n int) []byte {
	if n <= 0 {
		return nil
	}
	out := bytes.Clone(s.pending)
	if s.r.cover(out, s.pending) || s.masked > 0 {
		for i := range min(s.masked, len(out)) {
			out[i] = mask
		}
	}
	// A form that was found may reach into what is held back.
	s.masked = max(0, s.masked-n)
	for _, form := range s.r.forms {
		for at := max(0, n-len(form)+1); at < n && at+len(form) <= len(s.pending); at++ {
			if bytes.HasPrefix(s.pending[at:], form) {
				s.masked = max(s.masked, at+len(form)-n)
			}
		}
	}
	s.pending = append(s.pending[:0], s.pending[n:]...)
	return out[:n]
}

// held is the length of the longest end of b that begins a form and does not
// complete it.
func (r *Redactor) held(b []byte) int {
	longest := 0
	for _, form := range r.forms {
		tail := b[max(0, len(b)-len(form)+1):]
		for len(tail) > longest {
			i := bytes.IndexByte(tail, form[0])
			if i < 0 || len(tail)-i <= longest {
				break
			}
			tail = tail[i:]
			if bytes.HasPrefix(form, tail) {
				longest = len(tail)
				break
			}
			tail = tail[1:]
		}
	}
	return longest
}
