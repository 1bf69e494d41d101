package policy

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// IsolateDefaults are an isolate's limits where a profile sets none.
func IsolateDefaults() Limits {
	return Limits{
		Wall:     Duration(5 * time.Second),
		CPU:      Duration(time.Second),
		Memory:   64 << 20,
		Output:   1 << 20,
		Requests: 20,
		Calls:    1000,
	}
}

// JailDefaults are a jail's limits where a profile sets none. Wall and Output
// bound one exec, the others the whole jail.
func JailDefaults() Limits {
	return Limits{
		Wall:      Duration(10 * time.Minute),
		Memory:    1 << 30,
		Output:    16 << 20,
		CPUs:      1,
		Pids:      512,
		OpenFiles: 8192,
		Disk:      4 << 30,
		Inodes:    256 << 10,
		Idle:      Duration(10 * time.Minute),
		Lifetime:  Duration(2 * time.Hour),
	}
}

// A limit describes one field of Limits: how to reach it as a number, how to
// show it, and what the policy file may say.
type limit struct {
	key      string
	get      func(*Limits) float64
	set      func(*Limits, float64)
	show     func(float64) string
	min, max float64
	// open: not set in a grant means no limit, and a request may set one.
	open bool
}

func (f limit) unlessSet() limit {
	f.open = true
	return f
}

func durationLimit(key string, field func(*Limits) *Duration, least, most time.Duration) limit {
	return limit{key,
		func(l *Limits) float64 { return float64(*field(l)) },
		func(l *Limits, v float64) { *field(l) = Duration(v) },
		func(v float64) string { return Duration(v).String() },
		float64(least), float64(most), false}
}

func sizeLimit(key string, field func(*Limits) *Size, least, most Size) limit {
	return limit{key,
		func(l *Limits) float64 { return float64(*field(l)) },
		func(l *Limits, v float64) { *field(l) = Size(v) },
		func(v float64) string { return Size(v).String() },
		float64(least), float64(most), false}
}

func countLimit(key string, field func(*Limits) *int, least, most int) limit {
	return limit{key,
		func(l *Limits) float64 { return float64(*field(l)) },
		func(l *Limits, v float64) { *field(l) = int(v) },
		func(v float64) string { return strconv.Itoa(int(v)) },
		float64(least), float64(most), false}
}

const (
	day = 24 * time.Hour
	// maxExact keeps every size and duration exact in a float64.
	maxExact = 1 << 52
)

// The fields that have a meaning in an isolate and in a jail. The bounds keep
// out values that cannot work, such as a jail of 1 KiB, and typing mistakes.
var (
	isolateLimits = []limit{
		durationLimit("wall", func(l *Limits) *Duration { return &l.Wall }, time.Millisecond, time.Hour),
		durationLimit("cpu", func(l *Limits) *Duration { return &l.CPU }, time.Millisecond, time.Hour),
		sizeLimit("memory", func(l *Limits) *Size { return &l.Memory }, 1<<20, 4<<30),
		sizeLimit("output", func(l *Limits) *Size { return &l.Output }, 1, 1<<30),
		countLimit("requests", func(l *Limits) *int { return &l.Requests }, 1, 100_000),
		countLimit("calls", func(l *Limits) *int { return &l.Calls }, 1, 1_000_000),
	}
	jailLimits = []limit{
		durationLimit("wall", func(l *Limits) *Duration { return &l.Wall }, time.Millisecond, 30*day),
		sizeLimit("memory", func(l *Limits) *Size { return &l.Memory }, 4<<20, maxExact),
		sizeLimit("output", func(l *Limits) *Size { return &l.Output }, 1, 16<<30),
		{"cpus",
			func(l *Limits) float64 { return l.CPUs },
			func(l *Limits, v float64) { l.CPUs = v },
			func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) },
			0.01, 4096, false},
		countLimit("pids", func(l *Limits) *int { return &l.Pids }, 2, 4<<20),
		countLimit("open_files", func(l *Limits) *int { return &l.OpenFiles }, 16, 1<<20),
		sizeLimit("disk", func(l *Limits) *Size { return &l.Disk }, 1<<20, 1<<46),
		countLimit("inodes", func(l *Limits) *int { return &l.Inodes }, 256, 1<<31),
		sizeLimit("io_bytes", func(l *Limits) *Size { return &l.IOBytes }, 64<<10, maxExact).unlessSet(),
		countLimit("io_ops", func(l *Limits) *int { return &l.IOOps }, 10, 1<<30).unlessSet(),
		sizeLimit("bandwidth", func(l *Limits) *Size { return &l.Bandwidth }, 8<<10, 1<<40).unlessSet(),
		durationLimit("idle", func(l *Limits) *Duration { return &l.Idle }, time.Second, 30*day),
		durationLimit("lifetime", func(l *Limits) *Duration { return &l.Lifetime }, time.Second, 30*day),
	}
)

// allLimits has each field of Limits once, in the order of the type.
var allLimits = func() []limit {
	all := append([]limit(nil), isolateLimits...)
	seen := make(map[string]bool)
	for _, f := range all {
		seen[f.key] = true
	}
	for _, f := range jailLimits {
		if !seen[f.key] {
			all = append(all, f)
		}
	}
	return all
}()

// WithDefaults returns l with its unset fields taken from d.
func (l Limits) WithDefaults(d Limits) Limits {
	for _, f := range allLimits {
		if f.get(&l) == 0 {
			f.set(&l, f.get(&d))
		}
	}
	return l
}

// With returns l with the fields that change sets.
func (l Limits) With(change Limits) Limits { return change.WithDefaults(l) }

// Changed has the fields that l sets and old does not have so.
func (l Limits) Changed(old Limits) Limits {
	var out Limits
	for _, f := range allLimits {
		if v := f.get(&l); v != f.get(&old) {
			f.set(&out, v)
		}
	}
	return out
}

// AtMost returns l with the fields that most sets lowered to them. Fields that l
// does not have stay unset.
func (l Limits) AtMost(most Limits) Limits {
	for _, f := range allLimits {
		if v := f.get(&most); v != 0 && v < f.get(&l) {
			f.set(&l, v)
		}
	}
	return l
}

// Lower returns l with the fields that req sets, none of which may be above l
// or have no meaning there (unset in l). path names req in errors, such as
// "limits". The error is a *FieldError.
func (l Limits) Lower(req Limits, path string) (Limits, error) {
	for _, f := range allLimits {
		want, most := f.get(&req), f.get(&l)
		field := path + "." + f.key
		switch {
		case want == 0:
		case want < 0 || math.IsNaN(want):
			return Limits{}, &FieldError{Field: field, Message: "must be positive", Allowed: f.show(most)}
		case f.open && want < f.min:
			return Limits{}, &FieldError{Field: field, Message: "is less than anything works with", Allowed: f.show(f.min) + " and more"}
		case most == 0 && f.open && l.Lifetime != 0: // only a jail has one
			f.set(&l, want)
		case most == 0:
			return Limits{}, &FieldError{Field: field, Message: "has no meaning in this environment; leave it out"}
		case want > most:
			return Limits{}, &FieldError{
				Field:   field,
				Message: fmt.Sprintf("asks for %s, more than the policy grants; a request can only lower a limit", f.show(want)),
				Allowed: f.show(most),
			}
		default:
			f.set(&l, want)
		}
	}
	return l, nil
}
