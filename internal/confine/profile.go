package confine

import (
	"runtime"

	"sandboxd/internal/seccomp"
)

// A Profile is what a role may do after Apply.
type Profile struct {
	// Name of the role, for errors.
	Name string
	// ReadOnly and ReadWrite are the files and directories that can be opened.
	// None of them can be executed, and no device node can be made in them. A
	// path that does not exist is an error. Both empty: no path at all.
	ReadOnly  []string
	ReadWrite []string
	// Connect and Bind allow TCP and UDP in that direction, as far as the
	// filter has the system calls.
	Connect bool
	Bind    bool
	// Seccomp is the filter; nil is an error, not "no filter".
	Seccomp *seccomp.Filter
}

// A Report says what holds for the process after Apply, as the kernel tells it.
type Report struct {
	UID, GID int
	// Threads were read back. On each: no_new_privs, no capability in any of the
	// five sets, and at least Filters seccomp filters.
	Threads     int
	Filters     int
	Dumpable    bool
	LandlockABI int
}

// Apply confines this process, for ever and on all threads. The process must
// have been started by Start (or with the same properties): a user id that is
// not 0, no supplementary groups, no capability in any set.
//
// After an error the process may be half confined; it must exit. The errors are
// *PrivilegeError, *UnsupportedError, those of internal/seccomp, and the
// kernel's.
func Apply(p Profile) (Report, error) {
	// The calling thread's own state is looked at below.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return apply(p)
}
