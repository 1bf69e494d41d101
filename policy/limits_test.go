package policy

import (
	"errors"
	"testing"
)

func TestAtMost(t *testing.T) {
	l := Limits{Wall: 5e9, Memory: 64 << 20, Calls: 10}
	got := l.AtMost(Limits{Wall: 1e9, Memory: 128 << 20, CPUs: 2, Requests: 3})
	if want := (Limits{Wall: 1e9, Memory: 64 << 20, Calls: 10}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestLimitsThatNeedNotBe: where the policy sets none a request may, and where it
// does a request may only lower it.
func TestLimitsThatNeedNotBe(t *testing.T) {
	granted := JailDefaults()
	got, err := granted.Lower(Limits{IOOps: 100, Bandwidth: 1 << 20}, "limits")
	if err != nil || got.IOOps != 100 || got.Bandwidth != 1<<20 || got.IOBytes != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, req := range []Limits{{Bandwidth: 2 << 20}, {IOOps: 101}, {IOOps: 1}, {Bandwidth: -1}} {
		var field *FieldError
		if _, err := got.Lower(req, "limits"); !errors.As(err, &field) || field.Allowed == "" {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if l := granted.With(Limits{Pids: 7}); l.Pids != 7 || l.Memory != granted.Memory || l.Changed(granted) != (Limits{Pids: 7}) {
		t.Errorf("%+v", l)
	}
}

// TestJailLimitsAreRead in the form that their kind has.
func TestJailLimitsAreRead(t *testing.T) {
	text := "version: 1\nprofiles:\n  p:\n    jail:\n      limits: {disk: 2GiB, inodes: 5000, io_bytes: 8MiB, io_ops: 500, bandwidth: 1MiB}\ntenants: {a: {profile: p}}\n"
	p, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	profile, err := p.For("a")
	if err != nil {
		t.Fatal(err)
	}
	want := JailDefaults().With(Limits{Disk: 2 << 30, Inodes: 5000, IOBytes: 8 << 20, IOOps: 500, Bandwidth: 1 << 20})
	if profile.Jail.Limits != want {
		t.Errorf("%+v", profile.Jail.Limits)
	}
}
