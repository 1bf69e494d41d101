package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A Duration is written as a Go duration string such as "1.5s" in JSON, YAML
// and text. It is never negative.
type Duration time.Duration

// ParseDuration reads a Go duration string that is not negative.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%s is not a duration; write a number with a unit, such as 500ms, 1.5s, 10m or 2h", quote(s))
	}
	if d < 0 {
		return 0, fmt.Errorf("%s is negative; a duration must not be", quote(s))
	}
	return Duration(d), nil
}

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes d as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler; JSON uses it, too.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration(string(b))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// UnmarshalJSON reads a JSON string.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf(`%s is not a duration; write a string such as "1.5s"`, quote(string(b)))
	}
	return d.UnmarshalText([]byte(s))
}

// MarshalYAML writes the same text as MarshalText.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// UnmarshalYAML reads a YAML scalar such as 5s.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return errors.New("want a duration such as 500ms, 1.5s, 10m or 2h")
	}
	return d.UnmarshalText([]byte(n.Value))
}

// A Size is a number of bytes. In JSON and YAML it is an integer or a string
// with a unit: "64MiB" (powers of 1024) or "10KB" (powers of 1000). It is
// never negative, and it is always written as an integer in JSON.
type Size int64

// sizeUnits are ordered so that no unit is the suffix of a later one.
var sizeUnits = []struct {
	name   string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1},
}

// ParseSize reads an integer number of bytes, or a number with a unit.
func ParseSize(s string) (Size, error) {
	text := strings.TrimSpace(s)
	if strings.HasPrefix(text, "-") {
		return 0, fmt.Errorf("%s is negative; a size must not be", quote(s))
	}
	number, factor := text, 1.0
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			number, factor = strings.TrimRight(rest, " "), u.factor
			break
		}
	}
	if !decimal(number) {
		return 0, fmt.Errorf("%s is not a size; write bytes or a number with a unit, such as 1048576, 64MiB or 10KB", quote(s))
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		f := int64(factor)
		if n > math.MaxInt64/f {
			return 0, fmt.Errorf("%s is too large; the largest size is %d bytes", quote(s), int64(math.MaxInt64))
		}
		return Size(n * f), nil
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v*factor >= math.MaxInt64 {
		return 0, fmt.Errorf("%s is too large; the largest size is %d bytes", quote(s), int64(math.MaxInt64))
	}
	if v *= factor; v != math.Trunc(v) {
		return 0, fmt.Errorf("%s is not a whole number of bytes", quote(s))
	}
	return Size(v), nil
}

// decimal reports whether s is digits with at most one point between them.
func decimal(s string) bool {
	whole, part, point := strings.Cut(s, ".")
	return digits(whole) && (!point || digits(part))
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// Bytes returns the size as a plain number.
func (s Size) Bytes() int64 { return int64(s) }

// String writes the size with the largest binary unit that divides it.
func (s Size) String() string {
	for i := 3; i >= 0; i-- {
		u := sizeUnits[i]
		if f := Size(u.factor); s >= f && s%f == 0 {
			return strconv.FormatInt(int64(s/f), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize(string(b))
	if err != nil {
		return err
	}
	*s = v
	return nil
}

// MarshalJSON writes an integer.
func (s Size) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(s), 10), nil }

// UnmarshalJSON reads an integer or a string with a unit.
func (s *Size) UnmarshalJSON(b []byte) error {
	text := string(b)
	switch {
	case strings.HasPrefix(text, `"`):
		if err := json.Unmarshal(b, &text); err != nil {
			return fmt.Errorf("%s is not a size", quote(string(b)))
		}
	case strings.HasPrefix(text, "-") || digits(text):
	default:
		return fmt.Errorf(`%s is not a size; write an integer of bytes or a string such as "64MiB"`, quote(text))
	}
	return s.UnmarshalText([]byte(text))
}

// MarshalYAML writes the size with a unit, as people do.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// UnmarshalYAML reads a YAML scalar such as 64MiB or 1048576.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return errors.New("want a size such as 1048576, 64MiB or 10KB")
	}
	return s.UnmarshalText([]byte(n.Value))
}

// quote shows hostile or mistyped text in a message: escaped, and short.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
