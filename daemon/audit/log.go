package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// A Mirror gets each written line too, such as the journal. It is called in
// the log's order and must not block.
type Mirror interface {
	Record(r Record, seq uint64, line []byte)
}

// Options of Open; zero fields take the defaults.
type Options struct {
	// MaxFile is the size at which a file is closed and the next begun.
	MaxFile int64
	// Sync is how long a written record may wait to be made durable together
	// with others.
	Sync time.Duration
	// Retry is how often a log that cannot be written tries again by itself.
	Retry time.Duration
	// AppendOnly sets the file system's append-only flag, where it can. The
	// folder can then not be removed without chattr -a.
	AppendOnly bool
	// Mirror may be nil.
	Mirror Mirror
}

const (
	defaultMaxFile = 64 << 20
	defaultSync    = 50 * time.Millisecond
	defaultRetry   = 500 * time.Millisecond
)

// A Log is the open log. It may be used by many goroutines.
//
// Append returns when the record is in the kernel: a crash of the daemon loses
// nothing. Records are made durable in groups, at most Options.Sync later: a
// loss of power can take that much.
type Log struct {
	dir  string
	log  *slog.Logger
	opts Options
	lock *os.File

	unhealthy atomic.Pointer[UnavailableError]
	wake      chan struct{} // capacity 1: something is to be made durable
	stop      chan struct{}
	stopped   sync.WaitGroup

	// headMu is held while data is made durable and the head follows; it is
	// taken before mu.
	headMu  sync.Mutex
	written head // the head file's content

	mu     sync.Mutex
	closed bool
	file   *os.File
	size   int64 // end of the last whole record in file
	chain  chain
	buf    []byte
	codes  []*os.File // code files that are not durable yet
	// owed is what the next recovery record has to say, nil when none is due.
	// While it is set nothing else is written.
	owed *recovery
}

// Open opens or creates the log in dir with the default options.
func Open(dir string, log *slog.Logger) (*Log, error) { return OpenWith(dir, log, Options{}) }

// OpenWith opens or creates the log in dir, which is locked until Close:
// ErrInUse says that another process has it. An unfinished line that a crash
// left is put on record. A log that was tampered with is refused with a
// *CorruptError as far as its last file and its head show it (Verify checks
// all of it); the remedy is to move the folder away for inspection.
func OpenWith(dir string, log *slog.Logger, o Options) (*Log, error) {
	o.MaxFile = orDefault(o.MaxFile, defaultMaxFile)
	o.Sync = orDefault(o.Sync, defaultSync)
	o.Retry = orDefault(o.Retry, defaultRetry)
	if err := os.MkdirAll(filepath.Join(dir, codeDir), 0o700); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	l := &Log{
		dir: dir, log: log, opts: o, lock: lock, chain: chain{0, genesis},
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	if err := l.load(); err != nil {
		if l.file != nil {
			l.file.Close()
		}
		lock.Close()
		return nil, err
	}
	l.stopped.Add(1)
	go l.keep()
	return l, nil
}

func orDefault[T int64 | time.Duration](v, d T) T {
	if v > 0 {
		return v
	}
	return d
}

// Append writes a record and returns its place in the chain. It writes also
// when ctx is done: what happened has to be on record. The error, an
// *UnavailableError, means that it is not, and what it would have recorded
// must not happen.
func (l *Log) Append(ctx context.Context, r Record) (Receipt, error) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r.Time = r.Time.UTC()
	body := encodeBody(r)

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owed != nil && !l.closed {
		// sync takes headMu first, then writes what is owed.
		l.mu.Unlock()
		err := l.sync()
		l.mu.Lock()
		if err != nil {
			l.refused()
			return Receipt{}, err
		}
	}
	if l.closed {
		return Receipt{}, ErrClosed
	}
	if err := l.write(r, body, ""); err != nil {
		err = l.fail(err)
		l.refused()
		return Receipt{}, err
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return Receipt{Seq: l.chain.seq, Hash: l.chain.hash}, nil
}

// write puts one line into the file, after before. When it fails, part of the
// line may be in the file: the caller calls fail.
func (l *Log) write(r Record, body []byte, before string) error {
	var hash string
	seq := l.chain.seq + 1
	l.buf, hash = seal(append(l.buf[:0], before...), body, seq, l.chain.hash)
	sealed := l.buf[len(before):]
	l.buf = append(l.buf, '\n')
	if l.size > 0 && l.size+int64(len(l.buf)) > l.opts.MaxFile && before == "" {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	if _, err := l.file.Write(l.buf); err != nil {
		return err
	}
	l.size += int64(len(l.buf))
	l.chain = chain{seq, hash}
	if l.opts.Mirror != nil {
		l.opts.Mirror.Record(r, seq, sealed)
	}
	if cap(l.buf) > MaxLine {
		l.buf = nil
	}
	return nil
}

// rotate begins the next file. A failure leaves the current one in use.
func (l *Log) rotate() error {
	if err := l.file.Sync(); err != nil {
		return err
	}
	next, err := l.create(l.chain.seq + 1)
	if err != nil {
		return err
	}
	l.file.Close()
	l.file, l.size = next, 0
	return nil
}

// create makes the file that begins with the given record. An empty one may be
// there from an attempt that failed.
func (l *Log) create(first uint64) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(l.dir, fileName(first)), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() > 0 {
		err = &CorruptError{File: fileName(first), Kind: Changed, Detail: "the next file of the log is there already"}
	}
	if err == nil {
		err = syncDir(l.dir)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	l.protect(f)
	return f, nil
}

func (l *Log) protect(f *os.File) {
	if !l.opts.AppendOnly {
		return
	}
	if err := setAppendOnly(f); err != nil {
		l.log.Warn("audit log cannot be made append-only", "file", f.Name(), "error", err)
	}
}

// fail makes the log unhealthy until recover has written a record of err, and
// returns the error for the caller. The caller holds mu.
func (l *Log) fail(err error) error {
	if l.owed == nil {
		l.owed = &recovery{Cause: "write_failed", Error: err.Error()}
	}
	if old := l.unhealthy.Load(); old != nil {
		return &UnavailableError{Since: old.Since, Err: err}
	}
	u := &UnavailableError{Since: time.Now(), Err: err}
	l.unhealthy.Store(u)
	l.log.Error("audit log cannot be written; nothing new runs", "error", err)
	return u
}

// refused counts a record that its caller could not write. The caller holds mu.
func (l *Log) refused() {
	if l.owed != nil {
		l.owed.Refused++
	}
}

// Healthy returns nil when the last record could be written, and otherwise an
// *UnavailableError until one can be: the log tries again by itself, too.
func (l *Log) Healthy() error {
	if u := l.unhealthy.Load(); u != nil {
		return u
	}
	return nil
}

// Last returns the last record's place; Seq is 0 in an empty log.
func (l *Log) Last() Receipt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Receipt{Seq: l.chain.seq, Hash: l.chain.hash}
}

// Dir returns the log's folder, for Read and Verify.
func (l *Log) Dir() string { return l.dir }

// Close makes everything durable and closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	close(l.stop)
	l.stopped.Wait()
	err := l.sync()
	return errors.Join(err, l.file.Close(), l.lock.Close())
}
