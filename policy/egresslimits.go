package policy

import (
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// EgressLimits bound what goes out and comes in: under one rule ("limits" of
// the rule), or of a tenant under all its rules together ("egress_limits" of
// the profile). A zero field sets no limit of its own.
type EgressLimits struct {
	// Rate is how many requests, tunnels and service connections may begin in a
	// second; Burst how many at once after a pause (default: two seconds' worth).
	Rate  float64 `json:"rate,omitempty" yaml:"rate,omitempty"`
	Burst int     `json:"burst,omitempty" yaml:"burst,omitempty"`
	// Connections is how many may be under way at the same time.
	Connections int `json:"connections,omitempty" yaml:"connections,omitempty"`
	// BytesOut and BytesIn are what one request or connection may send and
	// receive, heads not counted.
	BytesOut Size `json:"bytes_out,omitempty" yaml:"bytes_out,omitempty"`
	BytesIn  Size `json:"bytes_in,omitempty" yaml:"bytes_in,omitempty"`
	// DayOut and DayIn are what all together may send and receive in 24 hours.
	DayOut Size `json:"day_out,omitempty" yaml:"day_out,omitempty"`
	DayIn  Size `json:"day_in,omitempty" yaml:"day_in,omitempty"`
	// Time is how long one request or connection may last.
	Time Duration `json:"time,omitempty" yaml:"time,omitempty"`
}

// EgressDefaults are a tenant's limits where its profile sets none.
func EgressDefaults() EgressLimits {
	return EgressLimits{
		Rate: 5000, Burst: 10_000, Connections: 512,
		DayOut: 64 << 30, DayIn: 256 << 30,
		Time: Duration(12 * time.Hour),
	}
}

// Filled returns l with its unset fields taken from d. A rate without a burst
// has two seconds' worth.
func (l EgressLimits) Filled(d EgressLimits) EgressLimits {
	if l.Rate > 0 && l.Burst == 0 {
		l.Burst = max(1, int(2*l.Rate))
	}
	for _, f := range egressLimits {
		if f.get(&l) == 0 {
			f.set(&l, f.get(&d))
		}
	}
	return l
}

// An egressLimit describes one field of EgressLimits, as limit does for Limits.
type egressLimit struct {
	key      string
	get      func(*EgressLimits) float64
	set      func(*EgressLimits, float64)
	show     func(float64) string
	parse    func(string) (float64, error)
	min, max float64
}

func egressSize(key string, field func(*EgressLimits) *Size) egressLimit {
	return egressLimit{key,
		func(l *EgressLimits) float64 { return float64(*field(l)) },
		func(l *EgressLimits, v float64) { *field(l) = Size(v) },
		func(v float64) string { return Size(v).String() },
		func(s string) (float64, error) { n, err := ParseSize(s); return float64(n), err },
		1, maxExact}
}

func egressCount(key string, field func(*EgressLimits) *int, most int) egressLimit {
	return egressLimit{key,
		func(l *EgressLimits) float64 { return float64(*field(l)) },
		func(l *EgressLimits, v float64) { *field(l) = int(v) },
		func(v float64) string { return strconv.Itoa(int(v)) },
		parseCount, 1, float64(most)}
}

var egressLimits = []egressLimit{
	{"rate",
		func(l *EgressLimits) float64 { return l.Rate },
		func(l *EgressLimits, v float64) { l.Rate = v },
		func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) },
		parseNumber, 0.001, 1e6},
	egressCount("burst", func(l *EgressLimits) *int { return &l.Burst }, 1e6),
	egressCount("connections", func(l *EgressLimits) *int { return &l.Connections }, 1e5),
	egressSize("bytes_out", func(l *EgressLimits) *Size { return &l.BytesOut }),
	egressSize("bytes_in", func(l *EgressLimits) *Size { return &l.BytesIn }),
	egressSize("day_out", func(l *EgressLimits) *Size { return &l.DayOut }),
	egressSize("day_in", func(l *EgressLimits) *Size { return &l.DayIn }),
	{"time",
		func(l *EgressLimits) float64 { return float64(l.Time) },
		func(l *EgressLimits, v float64) { l.Time = Duration(v) },
		func(v float64) string { return Duration(v).String() },
		func(s string) (float64, error) { d, err := ParseDuration(s); return float64(d), err },
		float64(time.Millisecond), float64(30 * day)},
}

// egressLimits reads the limits of a rule or a profile.
func (r *reader) egressLimits(n *yaml.Node, field string, l *EgressLimits) {
	known := make(map[string]keyFunc)
	example := EgressLimits{BytesOut: 1 << 20, BytesIn: 100 << 20}.Filled(EgressDefaults())
	for _, f := range egressLimits {
		known[f.key] = func(v *yaml.Node, path string) {
			s, ok := r.text(v, path, "a value such as "+f.show(f.get(&example)))
			if !ok {
				return
			}
			x, err := f.parse(s)
			switch {
			case err != nil:
				r.fail(v, path, "%v", err)
			case x < f.min || x > f.max:
				r.fail(v, path, "is %s; want %s to %s", quote(s), f.show(f.min), f.show(f.max))
			default:
				f.set(l, x)
			}
		}
	}
	r.keys(n, field, known)
	if n.Kind == yaml.MappingNode && hasKey(n, "burst") && !hasKey(n, "rate") {
		r.fail(n, field+".burst", "is how far a rate may be exceeded; write rate, too")
	}
}

// egressDefaults completes a profile's limits and notes which of them the file
// does not say.
func (r *reader) egressDefaults(field string, l *EgressLimits) {
	full := l.Filled(EgressDefaults())
	for _, f := range egressLimits {
		if v := f.get(&full); v != 0 && f.get(l) == 0 {
			r.note(field+"."+f.key, f.show(v), 0)
		}
	}
	*l = full
}
