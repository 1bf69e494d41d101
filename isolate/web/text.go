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

// Piece is how many bytes are decoded at a time.
const Piece = 64 << 10

// Decode makes text of bytes in an encoding by its name. Every longest part
// that could begin a character and does not becomes one U+FFFD, as the Encoding
// Standard says; if strict there is no text then.
//
// After each piece worked is told how many bytes were read and how many the text
// has so far. It may panic to end the work: so the caller keeps time and memory
// within bounds.
func Decode(b []byte, name string, strict bool, worked func(read, text int)) (text string, ok bool) {
	decode := decoderOf(name)
	if decode == nil {
		return "", false
	}
	var s strings.Builder
	for len(b) > 0 {
		piece := b[:min(len(b), Piece)]
		part, n, ok := decode(piece, len(piece) == len(b), strict)
		if !ok {
			return "", false
		}
		s.WriteString(part)
		b = b[n:]
		worked(n, s.Len())
	}
	return s.String(), true
}

// A pieceDecoder decodes a piece, of which it leaves what waits for the next one
// unless it is the last, and says how much it read.
type pieceDecoder func(piece []byte, last, strict bool) (text string, read int, ok bool)

func decoderOf(name string) pieceDecoder {
	switch name {
	case "utf-8":
		return decodeUTF8
	case "utf-16le":
		return utf16Decoder(binary.LittleEndian)
	case "utf-16be":
		return utf16Decoder(binary.BigEndian)
	}
	return legacyDecoder(name)
}

func legacyDecoder(name string) pieceDecoder {
	e, err := htmlindex.Get(name)
	if err != nil {
		return nil
	}
	d, single := e.NewDecoder(), strings.HasPrefix(name, "iso-8859-") || strings.HasPrefix(name, "windows-")
	var dst [4096]byte
	return func(piece []byte, last, strict bool) (string, int, bool) {
		var s strings.Builder
		read := 0
		for {
			written, n, err := d.Transform(dst[:], piece[read:], last)
			s.Write(dst[:written])
			read += n
			if errors.Is(err, transform.ErrShortDst) && written > 0 {
				continue
			}
			if err != nil && (last || read == 0 || !errors.Is(err, transform.ErrShortSrc)) {
				return "", 0, false
			}
			break
		}
		text := s.String()
		if single {
			text = withControls(piece, text)
		}
		// No other encoding has U+FFFD for a character.
		return text, read, !strict || !strings.ContainsRune(text, utf8.RuneError)
	}
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
// character. worked is told of each piece that was read, as by Decode.
func Incomplete(b []byte, name string, worked func(read int)) int {
	e, err := htmlindex.Get(name)
	if err != nil {
		return 0
	}
	d := e.NewDecoder()
	var dst [4096]byte
	for {
		_, read, err := d.Transform(dst[:], b, false)
		b = b[read:]
		worked(read)
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

func decodeUTF8(b []byte, last, strict bool) (string, int, bool) {
	if !last {
		b = b[:len(b)-waiting(b)]
	}
	if utf8.Valid(b) {
		return string(b), len(b), true
	}
	if strict {
		return "", 0, false
	}
	all := len(b)
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
	return s.String(), all, true
}

// waiting is how many bytes at the end begin a character that is not complete.
func waiting(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if end := b[len(b)-n:]; utf8.RuneStart(end[0]) {
			if utf8.FullRune(end) {
				return 0
			}
			return n
		}
	}
	return 0
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

func utf16Decoder(order binary.ByteOrder) pieceDecoder {
	return func(b []byte, last, strict bool) (string, int, bool) {
		if !last {
			b = b[:len(b)&^1]
			if c := order.Uint16(b[len(b)-2:]); c >= 0xd800 && c < 0xdc00 {
				b = b[:len(b)-2]
			}
		}
		text, ok := decodeUTF16(b, order, strict)
		return text, len(b), ok
	}
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
