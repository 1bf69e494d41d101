package data

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ncruces/go-sqlite3"
)

var (
	// ErrNotFound says that a key does not exist.
	ErrNotFound = errors.New("data: no such key")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("data: the store is closed")
	// ErrRemoving says that the tenant's data is being deleted.
	ErrRemoving = errors.New("data: the tenant's data is being deleted")
)

// Kinds of Error.
const (
	KindSQL    = "sql"    // wrong SQL, a broken constraint
	KindParams = "params" // wrong parameters, keys or values
	KindDenied = "denied" // not allowed, whoever asks
	KindLimit  = "limit"  // see Limit and Allowed
	KindBusy   = "busy"   // somebody else is writing: try again
)

// An Error is for the person or model who wrote the statement. Its text may
// repeat parts of the statement, and holds nothing of the host.
type Error struct {
	Kind    string
	Message string
	// Limit is "time", "memory", "rows", "bytes", "value" or "disk"; Allowed
	// its value.
	Limit, Allowed string
	// Offset is where in the SQL the fault is, in bytes; -1 when unknown.
	Offset int
}

func (e *Error) Error() string {
	s := e.Message
	if e.Allowed != "" {
		s += " (allowed: " + e.Allowed + ")"
	}
	return s
}

func failure(kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...), Offset: -1}
}

func overLimit(limit, allowed, message string) *Error {
	return &Error{Kind: KindLimit, Message: message, Limit: limit, Allowed: allowed, Offset: -1}
}

// outOfMemory is the text of the value that go-sqlite3 panics with when an
// allocation fails; it exports neither the value nor its type.
const outOfMemory = "sqlite3: out of memory"

// crashed makes an error of what a statement panicked with.
func (c *conn) crashed(p any) error {
	if err, ok := p.(error); ok && err.Error() == outOfMemory {
		return overLimit("memory", fmt.Sprint(c.store.opts.Memory), "the statement needs too much memory")
	}
	// The stack inside SQLite is bounded by a trap: very deep JSON paths reach
	// it, and so would a fault in SQLite.
	return failure(KindSQL, "the statement is too deeply nested or cannot be executed")
}

// explain turns an error of SQLite into an *Error for the statement's author,
// or into a plain one when it is not the author's to mend. parent is the
// caller's context, without the query's own time limit.
func (c *conn) explain(parent context.Context, err error, limits QueryLimits) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	var code sqlite3.ErrorCode
	if !errors.As(err, &code) {
		return fmt.Errorf("data: %w", err)
	}
	if c.denied != "" {
		return failure(KindDenied, "%s is not allowed here", c.denied)
	}
	switch code {
	case sqlite3.INTERRUPT:
		if parent.Err() != nil {
			return fmt.Errorf("data: %w", parent.Err())
		}
		return overLimit("time", limits.Time.String(), "the statement took too long")
	case sqlite3.READONLY:
		return failure(KindDenied, "a query cannot write")
	case sqlite3.TOOBIG:
		return overLimit("value", fmt.Sprint(maxValue), "a text, a blob, a row or the statement itself is too large")
	case sqlite3.FULL:
		return overLimit("disk", fmt.Sprint(c.store.opts.Disk), "the database is full")
	case sqlite3.BUSY, sqlite3.LOCKED:
		return failure(KindBusy, "the database is busy")
	case sqlite3.ERROR, sqlite3.CONSTRAINT, sqlite3.MISMATCH, sqlite3.RANGE, sqlite3.ABORT:
		return authorFault(err)
	default:
		return fmt.Errorf("data: %w", err)
	}
}

// authorFault keeps SQLite's own words, without the names of its error codes.
func authorFault(err error) error {
	text := err.Error()
	for _, prefix := range []string{"sqlite3: ", "SQL logic error: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return failure(KindSQL, "%s", text)
}

// at adds the place of the fault, if SQLite knows it, to an error of sql.
func at(err, cause error, sql string) error {
	var e *Error
	var se *sqlite3.Error
	if errors.As(err, &e) && errors.As(cause, &se) && se.SQL() != "" && strings.HasSuffix(sql, se.SQL()) {
		e.Offset = len(sql) - len(se.SQL())
	}
	return err
}
