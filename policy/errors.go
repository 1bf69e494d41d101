package policy

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNoTenant says that the policy names no profile for a tenant, which may
// therefore do nothing. Errors of Policy.For wrap it: a
// TenantError.
var ErrNoTenant = errors.New("the policy grants this tenant nothing")

// A TenantError says of which tenant that is so.
type TenantError struct{ Tenant string }

func (e *TenantError) Error() string {
	return fmt.Sprintf("the policy grants tenant %s nothing", quote(e.Tenant))
}

func (e *TenantError) Unwrap() error { return ErrNoTenant }

// A ParseError is one fault in a policy file.
type ParseError struct {
	// File is the name that Parse was given.
	File string
	// Line and Column are 1-based; 0 when the fault has no place.
	Line, Column int
	// Field is the path of the key, such as "profiles.skill.egress[0].host".
	Field string
	// Message says what is wrong and what to write instead.
	Message string
}

func (e *ParseError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
		if e.Column > 0 {
			fmt.Fprintf(&b, ":%d", e.Column)
		}
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// A ParseErrors holds all faults of a policy file, in the file's order. It is
// never empty; errors.As finds the first *ParseError in it.
type ParseErrors []*ParseError

func (e ParseErrors) Error() string {
	lines := make([]string, len(e))
	for i, f := range e {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.Is and errors.As the single faults.
func (e ParseErrors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, f := range e {
		errs[i] = f
	}
	return errs
}

// A FieldError is a value in a request that is wrong or above what is granted.
type FieldError struct {
	// Field is the path in the request, such as "limits.wall".
	Field   string
	Message string
	// Allowed is the largest or the possible value, "" if there is none.
	Allowed string
}

func (e *FieldError) Error() string {
	s := e.Field + ": " + e.Message
	if e.Allowed != "" {
		s += " (allowed: " + e.Allowed + ")"
	}
	return s
}

// A DeniedError is a refusal by policy.
type DeniedError struct {
	// What was asked for.
	What string
	// Why it is refused.
	Why string
	// Remedy is what the operator or the caller can do about it.
	Remedy string
}

func (e *DeniedError) Error() string {
	s := e.What + " is denied: " + e.Why
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}
