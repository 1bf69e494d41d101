package jail

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	// ErrExists says that the tenant has a jail, or that the exec ID is taken.
	// The existing one is returned with it.
	ErrExists = errors.New("jail: exists")
	// ErrGone says that the jail has ended, or that the asked-for event history
	// is no longer kept.
	ErrGone = errors.New("jail: gone")
	// ErrBusy says that the jail runs as many commands as it may.
	ErrBusy = errors.New("jail: too many commands at once")
	// ErrTooLarge says that a file or listing is over the caller's limit.
	ErrTooLarge = errors.New("jail: too large")
	// ErrNotRegular says that a path is not a regular file (or not a folder
	// where one is needed).
	ErrNotRegular = errors.New("jail: not a regular file")
	// ErrOutside says that a path would leave the jail's root.
	ErrOutside = errors.New("jail: path leaves the jail")
	// ErrNoStdin says that the exec was not started with Stdin.
	ErrNoStdin = errors.New("jail: stdin is not open")
)

// UnsupportedError says what this host lacks.
type UnsupportedError struct {
	Feature string // "landlock", "cgroup controllers" …
	Found   string
	Needed  string
	Remedy  string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("jail: this host lacks %s: found %s, needed %s; %s", e.Feature, e.Found, e.Needed, e.Remedy)
}

// SpecError names a field of a Spec or ExecSpec that cannot be used.
type SpecError struct {
	Field   string
	Message string
}

func (e *SpecError) Error() string { return "jail: " + e.Field + ": " + e.Message }

// StartError says at which step a jail or a command failed to start.
type StartError struct {
	Step  string
	Jail  bool // a jail's start, not a command's
	Errno unix.Errno
	Text  string
}

func (e *StartError) Error() string {
	s := "jail: start failed at " + e.Step
	if e.Errno != 0 {
		s += ": " + e.Errno.Error()
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// Unwrap lets errors.Is compare the errno.
func (e *StartError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// A RootError says that the tenant's writable root was made on another template
// than the one asked for.
type RootError struct{ Has, Wants string }

func (e *RootError) Error() string {
	return fmt.Sprintf("jail: the tenant's writable root was made on %s, not %s", e.Has, e.Wants)
}

// SelfCheckError says where a new jail differs from what was asked for. No
// tenant code has run in it.
type SelfCheckError struct {
	What string
	Got  string
	Want string
}

func (e *SelfCheckError) Error() string {
	return fmt.Sprintf("jail: self-check: %s is %q, want %q", e.What, e.Got, e.Want)
}
