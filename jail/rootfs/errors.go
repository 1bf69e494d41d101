package rootfs

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound says that no template has the name.
	ErrNotFound = errors.New("rootfs: no such template")
	// ErrBusy says that as many imports are under way as may be.
	ErrBusy = errors.New("rootfs: too many imports at once")
	// ErrTooLarge says that an import is over a limit.
	ErrTooLarge = errors.New("rootfs: too large")
)

// An ImportError says what is wrong with what was to be imported. Entry is
// hostile text.
type ImportError struct {
	Entry  string // of the archive; "" if the whole is meant
	Reason string
}

func (e *ImportError) Error() string {
	if e.Entry == "" {
		return "rootfs: " + e.Reason
	}
	return fmt.Sprintf("rootfs: entry %q: %s", e.Entry, e.Reason)
}

func badImport(format string, args ...any) error {
	return &ImportError{Reason: fmt.Sprintf(format, args...)}
}

func badEntry(entry, format string, args ...any) error {
	return &ImportError{Entry: entry, Reason: fmt.Sprintf(format, args...)}
}

func tooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrTooLarge}, args...)...)
}
