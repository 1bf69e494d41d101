package policy

import (
	"fmt"
	"slices"
	"strings"
)

// The two environments.
const (
	Isolate = "isolate"
	Jail    = "jail"
)

// The languages and needs that a Step may name. "shell" is for jails only,
// "wasm" for isolates only.
var (
	languages        = []string{"js", "ts", "python", "wasm", "shell"}
	isolateLanguages = []string{"js", "ts", "python", "wasm"}
	needs            = []string{"filesystem", "process", "packages"}
	environments     = []string{Isolate, Jail}
)

// A Step is what a request wants to run.
type Step struct {
	// Language is "js", "ts", "python", "wasm" or "shell".
	Language string
	// Needs are "filesystem", "process" and "packages"; empty means nothing
	// of Linux.
	Needs []string
	// Environment forces one; "" lets the rule choose.
	Environment string
}

// Choose says where the step runs: in an isolate unless it needs something of
// Linux. The error is a *FieldError for a step that contradicts itself and a
// *DeniedError for one that the profile does not grant. There is no falling
// back from one environment to the other: what is chosen must be granted.
func Choose(s Step, p *Profile) (env string, err error) {
	if env, _, err = Place(s); err != nil {
		return "", err
	}
	if p == nil {
		p = &Profile{}
	}
	if env == Jail {
		if p.Jail == nil {
			return "", &DeniedError{
				What:   "a jail",
				Why:    fmt.Sprintf("profile %q does not grant one", p.Name),
				Remedy: "an operator can add jail to the profile",
			}
		}
		return Jail, nil
	}
	if p.Isolate == nil {
		return "", &DeniedError{
			What:   "an isolate",
			Why:    fmt.Sprintf("profile %q does not grant one", p.Name),
			Remedy: elsewhere(p, "an operator can add isolate to the profile"),
		}
	}
	if !slices.Contains(p.Isolate.Languages, s.Language) {
		return "", &DeniedError{
			What:   s.Language + " in an isolate",
			Why:    fmt.Sprintf("profile %q grants %s there", p.Name, strings.Join(p.Isolate.Languages, ", ")),
			Remedy: elsewhere(p, "an operator can add the language to isolate.languages"),
		}
	}
	return Isolate, nil
}

func elsewhere(p *Profile, remedy string) string {
	if p.Jail != nil {
		return `needs: ["process"] runs the step in the jail, or ` + remedy
	}
	return remedy
}

// Place is the isolate-or-jail rule alone, without a profile: where the step
// belongs and why, in words for people.
func Place(s Step) (env, why string, err error) {
	if err := s.check(); err != nil {
		return "", "", err
	}
	env, why = Isolate, "it needs nothing of Linux"
	switch {
	case len(s.Needs) > 0:
		env, why = Jail, "it needs "+strings.Join(s.Needs, ", ")
	case s.Language == "shell":
		env, why = Jail, "a shell is a process"
	}
	switch {
	case s.Environment == Isolate && env == Jail:
		return "", "", &FieldError{
			Field:   "environment",
			Message: fmt.Sprintf("an isolate has no files, processes or packages, but %s; leave environment out or say %q", why, Jail),
			Allowed: Jail,
		}
	case s.Environment == Jail && env == Isolate:
		env, why = Jail, "the request says so"
	}
	if env == Jail && s.Language == "wasm" {
		return "", "", &FieldError{
			Field:   "language",
			Message: "a jail does not run wasm; leave needs and environment out",
			Allowed: "js, ts, python, shell",
		}
	}
	return env, why, nil
}

func (s Step) check() error {
	if err := oneOf("language", s.Language, languages); err != nil {
		return err
	}
	if s.Environment != "" {
		if err := oneOf("environment", s.Environment, environments); err != nil {
			return err
		}
	}
	for i, n := range s.Needs {
		if err := oneOf(fmt.Sprintf("needs[%d]", i), n, needs); err != nil {
			return err
		}
	}
	return nil
}

func oneOf(field, value string, allowed []string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	message := quote(value) + " is unknown"
	if value == "" {
		message = "is missing"
	}
	return &FieldError{Field: field, Message: message, Allowed: strings.Join(allowed, ", ")}
}
