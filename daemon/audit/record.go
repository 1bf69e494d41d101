package audit

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Kinds of Record.
const (
	KindStart    = "start"    // the daemon started
	KindStop     = "stop"     // the daemon stopped
	KindRun      = "run"      // code ran, or was refused
	KindExec     = "exec"     // a command ran in a jail
	KindEgress   = "egress"   // a decision about a request that leaves
	KindJail     = "jail"     // a jail was made, changed or ended
	KindData     = "data"     // a service wrote to a tenant's data
	KindAdmin    = "admin"    // policy reload, secrets, previews
	KindRecovery = "recovery" // written by this package: a torn line was found
)

// A Record is one line of the log.
type Record struct {
	// Time is set by Append when zero.
	Time time.Time `json:"time"`
	// Kind is one of the constants.
	Kind   string `json:"kind"`
	Tenant string `json:"tenant,omitempty"`
	RunID  string `json:"run_id,omitempty"`
	// Caller is who asked, usually a policy.Caller; any JSON value.
	Caller any `json:"caller,omitempty"`
	// Fields hold what happened, a struct or a map; any JSON object. Strings
	// in it may be hostile: the encoding keeps them inside their line.
	Fields any `json:"fields,omitempty"`
}

// A Receipt identifies a record in the log.
type Receipt struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"` // hex SHA-256 of the line without its end
}

// A Mirror gets each written line too, such as the journal. It must not block.
type Mirror interface {
	Record(r Record, line []byte)
}

// Options of Open; the zero value is good.
type Options struct {
	// MaxFile is the size at which a file is closed and the next begun.
	MaxFile int64
	// Mirror may be nil.
	Mirror Mirror
}

// A Log is the open log. It may be used by many goroutines.
type Log struct{}

// Open opens or creates the log in dir, which is locked until Close.
func Open(dir string, log *slog.Logger) (*Log, error) { return OpenWith(dir, log, Options{}) }

// OpenWith is Open with options.
func OpenWith(dir string, log *slog.Logger, o Options) (*Log, error) {
	return nil, errors.ErrUnsupported
}

// Append writes a record.
func (l *Log) Append(ctx context.Context, r Record) (Receipt, error) {
	return Receipt{}, errors.ErrUnsupported
}

// Healthy returns the error of the last Append that failed, until one succeeds.
func (l *Log) Healthy() error { return errors.ErrUnsupported }

// PutCode keeps code by content and returns its hex SHA-256.
func (l *Log) PutCode(ctx context.Context, code []byte) (string, error) {
	return "", errors.ErrUnsupported
}

// Close syncs and closes the log.
func (l *Log) Close() error { return errors.ErrUnsupported }

// A Summary is what Verify found to be whole.
type Summary struct {
	Files   int    `json:"files"`
	Records uint64 `json:"records"`
	Last    string `json:"last"` // hash of the last record
}

// Kinds of CorruptError.
const (
	Changed   = "changed"
	Missing   = "missing"
	Reordered = "reordered"
	Truncated = "truncated"
)

// A CorruptError says where the log is not what was written.
type CorruptError struct {
	File string
	Line int
	Kind string
	// Detail says what was found.
	Detail string
}

func (e *CorruptError) Error() string { return "audit: " + e.File + ": " + e.Kind + ": " + e.Detail }

// Verify checks the whole log in dir. It may run beside an open Log.
func Verify(dir string) (Summary, error) { return Summary{}, errors.ErrUnsupported }
