package secrets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
)

const (
	// MinLength is the shortest value that is taken: a shorter one could not be
	// removed from answers without damage to what only looks like it.
	MinLength = 8
	// MaxLength is the longest.
	MaxLength = 16 << 10
)

var (
	// ErrUnknown says that no credential has that name.
	ErrUnknown = errors.New("secrets: no such credential")
	// ErrName says that a credential's name is not valid.
	ErrName = errors.New("secrets: a credential's name is 1 to 64 of a-z, A-Z, 0-9, '.', '_', '-'")
	// ErrValue says that a value cannot be used; the error never holds it.
	ErrValue = errors.New("secrets: unusable credential value")
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckName says what is wrong with a credential's name, if anything.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return ErrName
	}
	return nil
}

// hidden is what every way of printing a Value shows.
const hidden = "[secret]"

// A Value is a credential. No way of printing, encoding or logging shows it.
// The bytes are in a closure: fmt does not call the methods of a Value that
// stands in another struct's unexported field, and prints fields and what they
// point to, but of a function only the address.
type Value struct{ get func() []byte }

// bytes are for injection and redaction alone.
func (v Value) bytes() []byte {
	if v.get == nil {
		return nil
	}
	return v.get()
}

// NewValue checks and copies a value. One line end at the end is not part of
// it: files that people write have one.
func NewValue(b []byte) (Value, error) {
	b = bytes.TrimSuffix(b, []byte("\n"))
	b = bytes.TrimSuffix(b, []byte("\r"))
	switch {
	case len(b) < MinLength:
		return Value{}, fmt.Errorf("%w: shorter than %d bytes", ErrValue, MinLength)
	case len(b) > MaxLength:
		return Value{}, fmt.Errorf("%w: longer than %d bytes", ErrValue, MaxLength)
	}
	for _, c := range b {
		if c < ' ' || c == 0x7f {
			return Value{}, fmt.Errorf("%w: it contains a control character", ErrValue)
		}
	}
	b = keep(b)
	return Value{get: func() []byte { return b }}, nil
}

// String implements fmt.Stringer and hides the value.
func (Value) String() string { return hidden }

// GoString implements fmt.GoStringer and hides the value.
func (Value) GoString() string { return hidden }

// Format implements fmt.Formatter and hides the value for every verb.
func (Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hidden) }

// MarshalJSON implements json.Marshaler and hides the value.
func (Value) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }

// MarshalText implements encoding.TextMarshaler and hides the value.
func (Value) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue implements slog.LogValuer and hides the value.
func (Value) LogValue() slog.Value { return slog.StringValue(hidden) }

// IsZero reports whether there is no value.
func (v Value) IsZero() bool { return len(v.bytes()) == 0 }

// Reveal returns a copy of a value, for the one library that must be given it:
// the client of OAuth2, in the proxy process. Nothing else may call it; a test
// of the tree holds that.
func Reveal(v Value) string { return string(v.bytes()) }
