package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func parseIsolate(isolate string) (*Policy, error) {
	return Parse("p", []byte("version: 1\nprofiles:\n  p:\n    isolate:\n      languages: [js]\n"+isolate+"tenants:\n  a: {profile: p}\n"))
}

func TestRecordings(t *testing.T) {
	for _, tt := range []struct {
		text, record string
		want         Recordings
	}{
		{"", RecordDeterministic, RecordingDefaults()},
		{"      record: all\n", RecordAll, RecordingDefaults()},
		{"      record: off\n", RecordOff, RecordingDefaults()},
		{"      recordings: {count: 3, size: 1MiB, total: 8MiB, age: 36h}\n", RecordDeterministic, Recordings{3, 1 << 20, 8 << 20, Duration(36 * time.Hour)}},
		{"      recordings: {size: 1MiB}\n", RecordDeterministic, Recordings{200, 1 << 20, 64 << 20, Duration(7 * day)}},
	} {
		p, err := parseIsolate(tt.text)
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		g := p.profiles["p"].Isolate
		if g.Record != tt.record || g.Recordings != tt.want {
			t.Errorf("%q is %q %+v", tt.text, g.Record, g.Recordings)
		}
		grants, err := p.Explain("a")
		if text := fmt.Sprint(grants); err != nil || !strings.Contains(text, "profiles.p.isolate.record ") || strings.Contains(text, "recordings.count") == (tt.record == RecordOff) {
			t.Errorf("%q explains as %s, %v", tt.text, text, err)
		}
	}
	for text, say := range map[string]string{
		"      record: some\n":                          "possible: deterministic, all, off",
		"      record: true\n":                          "possible",
		"      recordings: {count: 0}\n":                "1 to 100000",
		"      recordings: {count: many}\n":             "not a whole number",
		"      recordings: {size: 1}\n":                 "1KiB",
		"      recordings: {age: 1s}\n":                 "1m",
		"      recordings: {age: -1h}\n":                "negative",
		"      recordings: {size: 8MiB, total: 1MiB}\n": "more than the total",
		"      recordings: {number: 3}\n":               "number",
		"      recordings: 3\n":                         "recordings",
	} {
		if _, err := parseIsolate(text); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v does not say %q", text, err, say)
		}
	}
}
