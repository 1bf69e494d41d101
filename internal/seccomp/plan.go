package seccomp

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// errNotAllowed is what arguments that no rule allows get by default.
const errNotAllowed = unix.EPERM

// verdict is what a listed system call gets, without looking at arguments.
type verdict struct {
	kill   bool
	notify bool
	errno  unix.Errno // 0 and neither kill nor notify: allowed
	// rules, when there are any, decide first; notify and errno are for the rest.
	rules   []Rule
	denials []Denial
}

// plan is a checked Filter: one verdict for each name.
type plan map[string]*verdict

// newPlan checks f and sorts it by name. Every contradiction is an error:
// libseccomp would let one of the rules win, by an order that is its own.
func newPlan(f *Filter) (plan, error) {
	p := plan{}
	add := func(name string, v *verdict) error {
		if _, twice := p[name]; twice {
			return &ListError{Name: name, Problem: "listed twice"}
		}
		p[name] = v
		return nil
	}
	for _, name := range f.Allow {
		if err := add(name, &verdict{}); err != nil {
			return nil, err
		}
	}
	for _, name := range f.Kill {
		if err := add(name, &verdict{kill: true}); err != nil {
			return nil, err
		}
	}
	conditional := map[string]bool{}
	for _, r := range f.AllowIf {
		conditional[r.Name] = true
	}
	for name := range conditional {
		if err := add(name, &verdict{errno: errNotAllowed}); err != nil {
			return nil, err
		}
	}
	for name, errno := range f.Errno {
		if errno == 0 || errno > 4095 {
			return nil, &ListError{Name: name, Problem: fmt.Sprintf("%d is no error number", int(errno))}
		}
		if conditional[name] {
			p[name].errno = errno
		} else if err := add(name, &verdict{errno: errno}); err != nil {
			return nil, err
		}
	}
	for _, name := range f.Notify {
		if conditional[name] && f.Errno[name] == 0 {
			p[name].errno, p[name].notify = 0, true
		} else if err := add(name, &verdict{notify: true}); err != nil {
			return nil, err
		}
	}
	return p, p.addRules(f, conditional)
}

func (p plan) addRules(f *Filter, conditional map[string]bool) error {
	for _, r := range f.AllowIf {
		if err := r.check(); err != nil {
			return err
		}
		p[r.Name].rules = append(p[r.Name].rules, r)
	}
	for _, d := range f.DenyIf {
		if err := d.check(); err != nil {
			return err
		}
		if !conditional[d.Name] {
			return &ListError{Name: d.Name, Problem: "in DenyIf without a rule in AllowIf"}
		}
		if d.Errno == 0 || d.Errno > 4095 {
			return &ListError{Name: d.Name, Problem: fmt.Sprintf("%d is no error number", int(d.Errno))}
		}
		v := p[d.Name]
		for _, r := range v.rules {
			if !d.disjoint(r) {
				return &ListError{Name: d.Name, Problem: "a rule in DenyIf overlaps one in AllowIf"}
			}
		}
		for _, o := range v.denials {
			if o.Errno != d.Errno && !d.disjoint(o.Rule) {
				return &ListError{Name: d.Name, Problem: "rules in DenyIf overlap with different error numbers"}
			}
		}
		v.denials = append(v.denials, d)
	}
	return nil
}

// check refuses a rule that matches everything, never, or not what it says.
func (r Rule) check() error {
	if len(r.Args) == 0 {
		return &ListError{Name: r.Name, Problem: "a rule without arguments"}
	}
	for i, a := range r.Args {
		switch {
		case a.Index > 5:
			return &ListError{Name: r.Name, Problem: fmt.Sprintf("no argument %d", a.Index)}
		case a.Mask == 0:
			return &ListError{Name: r.Name, Problem: fmt.Sprintf("argument %d is compared with an empty mask", a.Index)}
		case a.Value&^a.Mask != 0:
			return &ListError{Name: r.Name, Problem: fmt.Sprintf("argument %d can never equal %#x under mask %#x", a.Index, a.Value, a.Mask)}
		case slices.ContainsFunc(r.Args[:i], func(b Arg) bool { return b.Index == a.Index }):
			return &ListError{Name: r.Name, Problem: fmt.Sprintf("argument %d is compared twice in one rule", a.Index)}
		}
	}
	return nil
}

// answer is the reference for what a program must return for a listed call.
func (v *verdict) answer(args *[6]uint64) uint32 {
	for _, r := range v.rules {
		if r.matches(args) {
			return unix.SECCOMP_RET_ALLOW
		}
	}
	for _, d := range v.denials {
		if d.matches(args) {
			return unix.SECCOMP_RET_ERRNO | uint32(d.Errno)
		}
	}
	switch {
	case v.kill:
		return unix.SECCOMP_RET_KILL_PROCESS
	case v.notify:
		return unix.SECCOMP_RET_USER_NOTIF
	case v.errno != 0:
		return unix.SECCOMP_RET_ERRNO | uint32(v.errno)
	default:
		return unix.SECCOMP_RET_ALLOW
	}
}
