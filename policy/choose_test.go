package policy

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestChoose(t *testing.T) {
	both := &Profile{Name: "both", Isolate: &IsolateGrant{Languages: []string{"js"}}, Jail: &JailGrant{}}
	isolate := &Profile{Name: "isolate", Isolate: both.Isolate}
	jail := &Profile{Name: "jail", Jail: both.Jail}
	for _, tc := range []struct {
		step    Step
		profile *Profile
		env     string
		field   string // of a FieldError
		denied  string // in a DeniedError
	}{
		{step: Step{Language: "js"}, profile: both, env: Isolate},
		{step: Step{Language: "js"}, profile: isolate, env: Isolate},
		{step: Step{Language: "js", Environment: "isolate"}, profile: both, env: Isolate},
		{step: Step{Language: "js", Environment: "jail"}, profile: both, env: Jail},
		{step: Step{Language: "js", Needs: []string{"packages"}}, profile: both, env: Jail},
		{step: Step{Language: "shell"}, profile: both, env: Jail},
		{step: Step{Language: "python", Needs: []string{"process", "filesystem"}}, profile: jail, env: Jail},

		// A step that contradicts itself.
		{step: Step{Language: "shell", Environment: "isolate"}, profile: both, field: "environment"},
		{step: Step{Language: "js", Needs: []string{"filesystem"}, Environment: "isolate"}, profile: both, field: "environment"},
		{step: Step{Language: "wasm", Needs: []string{"filesystem"}}, profile: both, field: "language"},
		{step: Step{Language: "wasm", Environment: "jail"}, profile: both, field: "language"},
		{step: Step{}, profile: both, field: "language"},
		{step: Step{Language: "JS"}, profile: both, field: "language"},
		{step: Step{Language: "js", Environment: "vm"}, profile: both, field: "environment"},
		{step: Step{Language: "js", Needs: []string{"packages", "gpu"}}, profile: both, field: "needs[1]"},

		// A step that is not granted; nothing falls back.
		{step: Step{Language: "js"}, profile: jail, denied: "does not grant one"},
		{step: Step{Language: "ts"}, profile: both, denied: "grants js there"},
		{step: Step{Language: "js", Environment: "jail"}, profile: isolate, denied: "does not grant one"},
		{step: Step{Language: "shell"}, profile: isolate, denied: "does not grant one"},
		{step: Step{Language: "js"}, profile: nil, denied: "does not grant one"},
		{step: Step{Language: "shell"}, profile: &Profile{}, denied: "does not grant one"},
	} {
		env, err := Choose(tc.step, tc.profile)
		var fe *FieldError
		var de *DeniedError
		switch {
		case tc.field != "":
			if !errors.As(err, &fe) || fe.Field != tc.field || fe.Allowed == "" {
				t.Errorf("%+v: got %q, %v, want a FieldError of %s", tc.step, env, err, tc.field)
			}
		case tc.denied != "":
			if !errors.As(err, &de) || !strings.Contains(de.Why, tc.denied) || de.Remedy == "" {
				t.Errorf("%+v: got %q, %v, want a DeniedError with %q", tc.step, env, err, tc.denied)
			}
		case err != nil || env != tc.env:
			t.Errorf("%+v: got %q, %v, want %s", tc.step, env, err, tc.env)
		}
		if err != nil && env != "" {
			t.Errorf("%+v: an environment came with an error", tc.step)
		}
	}
}

func TestPlaceSaysWhy(t *testing.T) {
	for _, tc := range []struct {
		step Step
		why  string
	}{
		{Step{Language: "js"}, "nothing of Linux"},
		{Step{Language: "js", Needs: []string{"packages", "process"}}, "needs packages, process"},
		{Step{Language: "shell"}, "a shell is a process"},
		{Step{Language: "js", Environment: "jail"}, "the request says so"},
	} {
		if _, why, err := Place(tc.step); err != nil || !strings.Contains(why, tc.why) {
			t.Errorf("%+v: %q, %v, want %q", tc.step, why, err, tc.why)
		}
	}
}

func TestLower(t *testing.T) {
	granted := IsolateDefaults()
	got, err := granted.Lower(Limits{Wall: Duration(time.Second), Requests: 20}, "limits")
	want := granted
	want.Wall = Duration(time.Second)
	if err != nil || got != want {
		t.Errorf("lowered to %+v, %v", got, err)
	}
	if got, err := granted.Lower(Limits{}, "limits"); err != nil || got != granted {
		t.Errorf("nothing asked gave %+v, %v", got, err)
	}
	for _, tc := range []struct {
		req            Limits
		field, allowed string
	}{
		{Limits{Wall: Duration(6 * time.Second)}, "limits.wall", "5s"},
		{Limits{CPU: granted.CPU + 1}, "limits.cpu", "1s"},
		{Limits{Memory: 65 << 20}, "limits.memory", "64MiB"},
		{Limits{Memory: -1}, "limits.memory", "64MiB"},
		{Limits{Output: granted.Output + 1}, "limits.output", "1MiB"},
		{Limits{Requests: 21}, "limits.requests", "20"},
		{Limits{Calls: -5}, "limits.calls", "1000"},
		{Limits{CPUs: 1}, "limits.cpus", ""},
		{Limits{Lifetime: 1}, "limits.lifetime", ""},
		{Limits{Idle: 1}, "limits.idle", ""},
		{Limits{Pids: 1}, "limits.pids", ""},
		{Limits{OpenFiles: 1}, "limits.open_files", ""},
		{Limits{IOBytes: 1 << 20}, "limits.io_bytes", ""},
		{Limits{Bandwidth: 1 << 20}, "limits.bandwidth", ""},
	} {
		got, err := granted.Lower(tc.req, "limits")
		var fe *FieldError
		if !errors.As(err, &fe) || fe.Field != tc.field || fe.Allowed != tc.allowed || got != (Limits{}) {
			t.Errorf("%+v: got %+v, %v, want a FieldError of %s, allowed %q", tc.req, got, err, tc.field, tc.allowed)
		}
	}
}

// Every field of Limits must be known to the table, or Lower would let it pass.
func TestLimitsTableIsComplete(t *testing.T) {
	full := Limits{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	if got := (Limits{}).WithDefaults(full); got != full {
		t.Errorf("WithDefaults leaves %+v", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("version: 1\nprofiles: {a: {egress: [{host: '*.x.y', paths: ['/%2F']}]}}\n"))
	f.Add([]byte("a: &a [*a, *a]\n"))
	f.Add([]byte("version: 1\n? [a]\n: b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse("f", b, testAccounts{})
		if (p == nil) == (err == nil) {
			t.Fatalf("policy %v with error %v", p, err)
		}
		if err != nil {
			if strings.ContainsAny(err.Error(), "\x1b\x00\r") {
				t.Errorf("the message passes control characters on: %q", err)
			}
			return
		}
		for name, pr := range p.profiles {
			for _, r := range pr.Egress {
				if checkHostPattern(r.Host) != nil || r.Credential != nil && (r.Scheme != "https" || r.Host[0] == '*') {
					t.Errorf("profile %s has the rule %+v", name, r)
				}
			}
			if pr.Isolate != nil && (pr.Isolate.Limits.Wall <= 0 || pr.Isolate.Limits.Memory <= 0) {
				t.Errorf("profile %s has an isolate without limits", name)
			}
		}
		for tenant, name := range p.exact {
			if p.profiles[name] == nil || ValidTenant(tenant) != nil {
				t.Errorf("tenant %q has the profile %q", tenant, name)
			}
		}
	})
}
