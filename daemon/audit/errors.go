package audit

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrInUse says that another process has the log open.
	ErrInUse = errors.New("audit: another process has this log open")
	// ErrClosed says that the log was closed.
	ErrClosed = errors.New("audit: the log is closed")
)

// An UnavailableError says that records cannot be written now.
type UnavailableError struct {
	// Since is when it began, Err why.
	Since time.Time
	Err   error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("audit: no record can be written since %s: %v; nothing new runs until one can",
		e.Since.Format(time.RFC3339), e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// Kinds of CorruptError.
const (
	Changed   = "changed"
	Missing   = "missing"
	Reordered = "reordered"
	Truncated = "truncated"
)

// A CorruptError says where the log is not what was written.
type CorruptError struct {
	// File is the name within the log's folder.
	File string
	// Line is 1-based; 0 when the fault is the file's.
	Line int
	Kind string
	// Detail says what was found.
	Detail string
}

func (e *CorruptError) Error() string {
	at := e.File
	if e.Line > 0 {
		at = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	return fmt.Sprintf("audit: %s: %s: %s", at, e.Kind, e.Detail)
}
