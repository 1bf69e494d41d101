package policy

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func TestParseSize(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want Size
		err  string
	}{
		{in: "0", want: 0},
		{in: "1048576", want: 1 << 20},
		{in: "64MiB", want: 64 << 20},
		{in: "64 MiB", want: 64 << 20},
		{in: " 1GiB ", want: 1 << 30},
		{in: "10KB", want: 10000},
		{in: "10kB", want: 10000},
		{in: "1.5KiB", want: 1536},
		{in: "1TiB", want: 1 << 40},
		{in: "7B", want: 7},
		{in: "9223372036854775807", want: math.MaxInt64},
		{in: "9223372036854775808", err: "too large"},
		{in: "8388608TiB", err: "too large"},
		{in: "8388607TiB", want: 8388607 << 40},
		{in: "99999999999999999999.5MiB", err: "too large"},
		{in: "-1", err: "negative"},
		{in: "-64MiB", err: "negative"},
		{in: "1.3B", err: "whole number"},
		{in: "0.1KiB", err: "whole number"},
		{in: "", err: "not a size"},
		{in: "MiB", err: "not a size"},
		{in: "64M", err: "not a size"},
		{in: "64mib", err: "not a size"},
		{in: "1e9", err: "not a size"},
		{in: "0x10", err: "not a size"},
		{in: "1_000", err: "not a size"},
		{in: "+5", err: "not a size"},
		{in: ".5MiB", err: "not a size"},
		{in: "5.MiB", err: "not a size"},
		{in: "1.2.3MiB", err: "not a size"},
		{in: "NaN", err: "not a size"},
		{in: strings.Repeat("x", 1000), err: "…"},
		{in: "\x1b[31m", err: `\x1b`},
	} {
		got, err := ParseSize(tc.in)
		checkError(t, tc.in, err, tc.err)
		if got != tc.want {
			t.Errorf("ParseSize(%q) = %d, want %d", tc.in, got, tc.want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want time.Duration
		err  string
	}{
		{in: "1.5s", want: 1500 * time.Millisecond},
		{in: "0s", want: 0},
		{in: "0", want: 0},
		{in: "2h45m", want: 165 * time.Minute},
		{in: "-1s", err: "negative"},
		{in: "5", err: "number with a unit"},
		{in: "5 s", err: "not a duration"},
		{in: "1d", err: "not a duration"},
		{in: "", err: "not a duration"},
		{in: "9999999h", err: "not a duration"},
	} {
		got, err := ParseDuration(tc.in)
		checkError(t, tc.in, err, tc.err)
		if got.Std() != tc.want {
			t.Errorf("ParseDuration(%q) = %v, want %v", tc.in, got, tc.want)
		}
	}
}

func checkError(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%q: %v", what, err)
	case want != "" && err == nil:
		t.Errorf("%q was accepted, want an error with %q", what, want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("%q: error %q does not contain %q", what, err, want)
	}
}

func TestSizeString(t *testing.T) {
	for s, want := range map[Size]string{
		0: "0", 1: "1", 1023: "1023", 1024: "1KiB", 1536: "1536", 64 << 20: "64MiB",
		1 << 30: "1GiB", 3 << 40: "3TiB", 1<<30 + 1: "1073741825",
	} {
		if got := s.String(); got != want {
			t.Errorf("Size(%d) is written %q, want %q", int64(s), got, want)
		}
		if back, err := ParseSize(want); err != nil || back != s {
			t.Errorf("%q reads back as %d, %v", want, back, err)
		}
	}
}

func TestUnitsJSON(t *testing.T) {
	l := Limits{Wall: Duration(1500 * time.Millisecond), Memory: 64 << 20, Requests: 3}
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"wall":"1.5s","memory":67108864,"requests":3}`; string(b) != want {
		t.Errorf("limits are written %s, want %s", b, want)
	}
	var back Limits
	if err := json.Unmarshal(b, &back); err != nil || back != l {
		t.Errorf("limits read back as %+v, %v", back, err)
	}
	for in, want := range map[string]string{
		`{"memory":"64MiB"}`:      "",
		`{"memory":"\u0036MiB"}`:  "",
		`{"memory":-1}`:           "negative",
		`{"memory":1.5}`:          "not a size",
		`{"memory":1e3}`:          "not a size",
		`{"memory":true}`:         "not a size",
		`{"memory":null}`:         "not a size",
		`{"memory":[1]}`:          "not a size",
		`{"wall":"5s"}`:           "",
		`{"wall":5}`:              "not a duration",
		`{"wall":null}`:           "not a duration",
		`{"wall":{}}`:             "not a duration",
		`{"wall":"-5s"}`:          "negative",
		`{"memory":"99999999EB"}`: "not a size",
	} {
		var l Limits
		checkError(t, in, json.Unmarshal([]byte(in), &l), want)
	}
}

func TestUnitsYAML(t *testing.T) {
	l := Limits{Wall: Duration(time.Minute), Memory: 1 << 30}
	b, err := yaml.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	if want := "wall: 1m0s\nmemory: 1GiB\n"; string(b) != want {
		t.Errorf("limits are written %q, want %q", b, want)
	}
	var back Limits
	if err := yaml.Unmarshal(b, &back); err != nil || back != l {
		t.Errorf("limits read back as %+v, %v", back, err)
	}
	for in, want := range map[string]string{
		"memory: 1048576": "", "memory: 10KB": "", "wall: 5s": "",
		"memory: [1]": "want a size", "memory: -5": "negative",
		"wall: {a: 1}": "want a duration", "wall: 5": "not a duration",
	} {
		var l Limits
		checkError(t, in, yaml.Unmarshal([]byte(in), &l), want)
	}
}
