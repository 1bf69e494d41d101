package confine

import "fmt"

// PrivilegeError says that the process holds, or does not hold, what a confined
// process must: it was started the wrong way.
type PrivilegeError struct {
	What   string // "uid", "CapBnd", "no_new_privs" …
	Found  string
	Needed string
}

func (e *PrivilegeError) Error() string {
	return fmt.Sprintf("confine: %s is %s, must be %s", e.What, e.Found, e.Needed)
}

// UnsupportedError says that the kernel lacks a feature without which nothing
// is confined.
type UnsupportedError struct {
	Feature string
	Found   string
	Needed  string
	Remedy  string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("confine: this kernel offers %s %s, needed is %s: %s", e.Feature, e.Found, e.Needed, e.Remedy)
}
