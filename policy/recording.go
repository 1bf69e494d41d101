package policy

import (
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// Which runs in isolates are recorded, so that they can be replayed.
const (
	RecordOff           = "off"
	RecordDeterministic = "deterministic" // those that are, and those that ask for it
	RecordAll           = "all"
)

var recordModes = []string{RecordDeterministic, RecordAll, RecordOff}

// Recordings bound what is kept of a tenant's runs for replay. When one bound is
// reached the oldest recordings are dropped.
type Recordings struct {
	Count int `json:"count" yaml:"count,omitempty"`
	// Size is the most that one recording may have: a larger one is incomplete.
	Size Size `json:"size" yaml:"size,omitempty"`
	// Total is that of all of a tenant's recordings together.
	Total Size     `json:"total" yaml:"total,omitempty"`
	Age   Duration `json:"age" yaml:"age,omitempty"`
}

// RecordingDefaults apply where a profile sets none.
func RecordingDefaults() Recordings {
	return Recordings{Count: 200, Size: 16 << 20, Total: 64 << 20, Age: Duration(7 * day)}
}

// recordingLimits has each bound with the form that Limits' fields have.
var recordingLimits = []struct {
	key         string
	get         func(*Recordings) string
	set         func(*Recordings, float64)
	parseAs     string // a key of Limits with the same form
	least, most float64
	bounds      string
}{
	{"count", func(r *Recordings) string { return fmt.Sprint(r.Count) }, func(r *Recordings, v float64) { r.Count = int(v) }, "calls", 1, 100_000, "1 to 100000"},
	{"size", func(r *Recordings) string { return r.Size.String() }, func(r *Recordings, v float64) { r.Size = Size(v) }, "output", 1 << 10, 1 << 30, "1KiB to 1GiB"},
	{"total", func(r *Recordings) string { return r.Total.String() }, func(r *Recordings, v float64) { r.Total = Size(v) }, "output", 1 << 10, 1 << 40, "1KiB to 1TiB"},
	{"age", func(r *Recordings) string { return r.Age.String() }, func(r *Recordings, v float64) { r.Age = Duration(v) }, "wall", float64(time.Minute), float64(365 * day), "1m to 8760h"},
}

// recordings reads the bounds; those that are not there have their defaults.
func (r *reader) recordings(n *yaml.Node, field string, g *Recordings) {
	known := make(map[string]keyFunc)
	for _, f := range recordingLimits {
		known[f.key] = func(v *yaml.Node, path string) {
			s, ok := r.text(v, path, "a value such as "+f.get(g))
			if !ok {
				return
			}
			i := slices.IndexFunc(allLimits, func(l limit) bool { return l.key == f.parseAs })
			switch x, err := allLimits[i].parse(s); {
			case err != nil:
				r.fail(v, path, "%v", err)
			case x < f.least || x > f.most:
				r.fail(v, path, "is %s; want %s, or leave it out for the default", quote(s), f.bounds)
			default:
				f.set(g, x)
			}
		}
	}
	r.keys(n, field, known)
	if g.Size > g.Total {
		r.fail(n, field, "has a size of %s for one, more than the total of %s for all", g.Size, g.Total)
	}
}

// noteRecording completes what the file does not say.
func (r *reader) noteRecording(field string, g *IsolateGrant) {
	if g.Record == "" {
		g.Record = RecordDeterministic
		r.note(field+".record", g.Record, 0)
	}
	if g.Record == RecordOff {
		return
	}
	for _, f := range recordingLimits {
		path := field + ".recordings." + f.key
		if !slices.ContainsFunc(r.origins, func(o origin) bool { return o.field == path }) {
			r.note(path, f.get(&g.Recordings), 0)
		}
	}
}
