package web

import (
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/htmlindex"
	"golang.org/x/text/transform"
)

// Decode makes text of bytes in an encoding by its name. Every longest part
// that could begin a character and does not becomes one U+FFFD, as the Encoding
// Standard says; if strict there is no text then.
func Decode(b []byte, name string, strict bool) (text string, ok bool) {
	switch name {
	case "utf-8":
		return decodeUTF8(b, strict)
	case "utf-16le":
		return decodeUTF16(b, binary.LittleEndian, strict)
	case "utf-16be":
		return decodeUTF16(b, binary.BigEndian, strict)
	}
	e, err := htmlindex.Get(name)
	if err != nil {
		return "", false
	}
	out, err := e.NewDecoder().Bytes(b)
	if err != nil {
		return "", false
	}
	text = string(out)
	if strings.HasPrefix(name, "iso-8859-") || strings.HasPrefix(name, "windows-") {
		text = withControls(b, text)
	}
	// No other encoding has U+FFFD for a character.
	return text, !strict || !strings.ContainsRune(text, utf8.RuneError)
}

// withControls gives the bytes of 0x80 to 0x9f in a text of one byte for each
// character their code points, where the library has no character for them.
func withControls(b []byte, text string) string {
	out := []rune(text)
	for i, c := range b {
		if i < len(out) && out[i] == utf8.RuneError && c >= 0x80 && c <= 0x9f {
			out[i] = rune(c)
		}
	}
	return string(out)
}

// Incomplete is how many bytes at the end of b wait for the rest of their
// character.
func Incomplete(b []byte, name string) int {
	e, err := htmlindex.Get(name)
	if err != nil {
		return 0
	}
	d := e.NewDecoder()
	var dst [4096]byte
	for {
		_, read, err := d.Transform(dst[:], b, false)
		b = b[read:]
		switch {
		case errors.Is(err, transform.ErrShortSrc) && len(b) < maxCharacter:
			return len(b)
		case errors.Is(err, transform.ErrShortDst) && read > 0:
			continue
		default:
			return 0
		}
	}
}

// maxCharacter is more bytes than any character has.
const maxCharacter = 8

// EncodingName is the name of the encoding with a label, empty if there is none.
func EncodingName(label string) string {
	if strings.ContainsFunc(label, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "" // the caller has taken off the white space that may be there
	}
	e, err := htmlindex.Get(label)
	if err != nil || e == encoding.Replacement {
		return ""
	}
	name, err := htmlindex.Name(e)
	if err != nil {
		return ""
	}
	return name
}

func decodeUTF8(b []byte, strict bool) (string, bool) {
	if utf8.Valid(b) {
		return string(b), true
	}
	if strict {
		return "", false
	}
	var s strings.Builder
	s.Grow(len(b) + len(b)/8)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			n = subpart(b)
		}
		s.WriteRune(r)
		b = b[n:]
	}
	return s.String(), true
}

// subpart is how many bytes of ill-formed UTF-8 one U+FFFD stands for.
func subpart(b []byte) int {
	low, high, need := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		need = 1
	case c >= 0xe0 && c <= 0xef:
		need = 2
		if c == 0xe0 {
			low = 0xa0
		} else if c == 0xed {
			high = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		need = 3
		if c == 0xf0 {
			low = 0x90
		} else if c == 0xf4 {
			high = 0x8f
		}
	}
	n := 1
	for n < len(b) && n <= need && b[n] >= low && b[n] <= high {
		low, high = 0x80, 0xbf
		n++
	}
	return n
}

func decodeUTF16(b []byte, order binary.ByteOrder, strict bool) (string, bool) {
	units := make([]uint16, 0, len(b)/2)
	for ; len(b) >= 2; b = b[2:] {
		units = append(units, order.Uint16(b))
	}
	var s strings.Builder
	s.Grow(2 * len(units))
	for i := 0; i < len(units); i++ {
		r := rune(units[i])
		if utf16.IsSurrogate(r) {
			pair := rune(utf8.RuneError)
			if i+1 < len(units) {
				pair = utf16.DecodeRune(r, rune(units[i+1]))
			}
			if pair == utf8.RuneError && strict {
				return "", false
			}
			if pair != utf8.RuneError {
				i++
			}
			r = pair
		}
		s.WriteRune(r)
	}
	if len(b) > 0 {
		if strict {
			return "", false
		}
		s.WriteRune(utf8.RuneError)
	}
	return s.String(), true
}

// ScalarValues replaces the lone surrogates in text of the guest, which come as
// three bytes each, by U+FFFD, which has three as well.
func ScalarValues(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == 0xed && b[i+1] >= 0xa0 {
			copy(b[i:], "\uFFFD")
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
