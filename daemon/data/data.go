package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"
)

// Options of a Store; zero fields take the defaults.
type Options struct {
	// MaxOpen is the number of open connections.
	MaxOpen int
	// Memory is the most that one connection may use, in bytes.
	Memory int64
	// Disk is the largest size of one database file, in bytes. A tenant has
	// two: its database and its key-value store.
	Disk int64
	Log  *slog.Logger
}

const (
	defaultMaxOpen = 32
	defaultMemory  = 32 << 20
	defaultDisk    = 256 << 20
)

// A Store holds all tenants' data, each in a folder of its own. It may be used
// by many goroutines.
type Store struct {
	dir  string
	opts Options
	log  *slog.Logger

	mu       sync.Mutex
	closed   bool
	open     int         // connections, idle and in use
	idle     []*conn     // longest idle first
	inUse    map[key]int // no zeros
	removing map[string]bool
	totals   map[string]*total // of deployments, where known, by tenant
	changed  chan struct{}     // closed, and made anew, when one is freed
}

// Open opens the store in dir with the default options.
func Open(dir string) (*Store, error) { return OpenWith(dir, Options{}) }

// OpenWith opens or creates the store in dir. The folder must be used by one
// process.
func OpenWith(dir string, o Options) (*Store, error) {
	if o.MaxOpen <= 0 {
		o.MaxOpen = defaultMaxOpen
	}
	if o.Memory <= 0 {
		o.Memory = defaultMemory
	}
	if o.Disk <= 0 {
		o.Disk = defaultDisk
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return &Store{
		dir: dir, opts: o, log: o.Log,
		inUse: make(map[key]int), removing: make(map[string]bool), totals: make(map[string]*total), changed: make(chan struct{}),
	}, nil
}

// Close closes idle connections now and the others when they are free.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, c := range s.idle {
		c.close()
		s.open--
	}
	s.idle = nil
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// QueryLimits bound one statement; zero fields take the defaults.
type QueryLimits struct {
	Rows  int           // rows of the answer; 10,000
	Bytes int64         // bytes of the answer, about as JSON; 1 MiB
	Time  time.Duration // from start to end; 1 s
}

func (l QueryLimits) withDefaults() QueryLimits {
	if l.Rows <= 0 {
		l.Rows = 10_000
	}
	if l.Bytes <= 0 {
		l.Bytes = 1 << 20
	}
	if l.Time <= 0 {
		l.Time = time.Second
	}
	return l
}

// Query runs one read-only statement of hostile origin. params is what Params
// reads. Errors that the statement's author can mend are an *Error.
func (s *Store) Query(ctx context.Context, tenant, sql string, params json.RawMessage, lim QueryLimits) (*Rows, error) {
	args, err := Params(params)
	if err != nil {
		return nil, err
	}
	if err := checkSQL(sql); err != nil {
		return nil, err
	}
	lim = lim.withDefaults()
	limited, cancel := context.WithTimeout(ctx, lim.Time)
	defer cancel()
	c, err := s.acquire(limited, key{tenant, reader})
	if err != nil {
		return nil, waited(ctx, err, lim)
	}
	defer s.release(c)
	var rows *Rows
	err = c.with(limited, func() error {
		rows, err = c.query(sql, args, lim)
		return err
	})
	if err != nil {
		return nil, at(c.explain(ctx, err, lim), err, sql)
	}
	return rows, nil
}

// waited tells the caller's own deadline from the query's.
func waited(ctx context.Context, err error, lim QueryLimits) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return failure(KindBusy, "%d statements of this tenant are under way, and none ended in %v", maxReaders, lim.Time)
	}
	return err
}

// query prepares sql, which must be one statement that returns rows.
func (c *conn) query(sql string, args *Args, lim QueryLimits) (*Rows, error) {
	st, tail, err := c.db.Prepare(sql)
	if err != nil {
		return nil, err
	}
	if st == nil {
		return nil, failure(KindSQL, "there is no statement")
	}
	defer st.Close()
	if err := c.alone(tail); err != nil {
		return nil, err
	}
	if !st.ReadOnly() {
		return nil, failure(KindDenied, "a query cannot write")
	}
	if err := args.bind(st); err != nil {
		return nil, err
	}
	return collect(st, lim)
}

// alone checks that nothing but space and comments follows a statement.
func (c *conn) alone(tail string) error {
	if tail == "" {
		return nil
	}
	more, _, err := c.db.Prepare(tail)
	if more != nil {
		_ = more.Close()
	}
	if more != nil || err != nil {
		return failure(KindSQL, "there is more than one statement; send them one by one")
	}
	return nil
}

// Result of an Exec.
type Result struct {
	// Changes is the number of rows that all statements changed.
	Changes      int64 `json:"changes"`
	LastInsertID int64 `json:"last_insert_id"`
	// Returned are the rows of the last statement, if it returns any.
	Returned *Rows `json:"returned,omitempty"`
}

// execTime bounds an Exec whose context has no earlier deadline.
const execTime = 30 * time.Second

// Exec runs statements for the service itself, all of them or none: they are
// one transaction. With parameters there is one statement only. It may not
// reach other files, either.
func (s *Store) Exec(ctx context.Context, tenant, sql string, params json.RawMessage) (Result, error) {
	args, err := Params(params)
	if err != nil {
		return Result{}, err
	}
	if err := checkSQL(sql); err != nil {
		return Result{}, err
	}
	lim := QueryLimits{Time: execTime}.withDefaults()
	limited, cancel := context.WithTimeout(ctx, lim.Time)
	defer cancel()
	c, err := s.acquire(limited, key{tenant, writer})
	if err != nil {
		return Result{}, waited(ctx, err, lim)
	}
	defer s.release(c)
	var r Result
	err = c.with(limited, func() error {
		r, err = c.transaction(sql, args, lim)
		return err
	})
	if err != nil {
		return Result{}, at(c.explain(ctx, err, lim), err, sql)
	}
	return r, nil
}

func (c *conn) transaction(sql string, args *Args, lim QueryLimits) (r Result, err error) {
	if err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return r, err
	}
	before := c.db.TotalChanges()
	c.db.SetLastInsertRowID(0)
	if r.Returned, err = c.run(sql, args, lim); err == nil {
		err = c.exec("COMMIT")
	}
	if err != nil {
		// Also when the time is up; SQLite may have rolled back by itself.
		c.db.SetInterrupt(context.Background())
		if !c.db.GetAutocommit() {
			err = errors.Join(err, c.exec("ROLLBACK"))
		}
		return Result{}, err
	}
	r.Changes, r.LastInsertID = c.db.TotalChanges()-before, c.db.LastInsertRowID()
	return r, nil
}

// run runs the statements one after the other.
func (c *conn) run(sql string, args *Args, lim QueryLimits) (last *Rows, err error) {
	for n := 0; ; n++ {
		st, tail, err := c.db.Prepare(sql)
		if err != nil {
			return nil, err
		}
		if st == nil && n == 0 {
			return nil, failure(KindSQL, "there is no statement")
		}
		if st == nil {
			return last, nil
		}
		if args.len() > 0 {
			if err := c.alone(tail); err != nil {
				_ = st.Close()
				return nil, err
			}
		}
		last, err = execOne(st, args, lim)
		if err != nil {
			return nil, err
		}
		sql = tail
	}
}

func execOne(st *sqlite3.Stmt, args *Args, lim QueryLimits) (*Rows, error) {
	defer st.Close()
	if err := args.bind(st); err != nil {
		return nil, err
	}
	rows, err := collect(st, lim)
	if err != nil || len(rows.Columns) == 0 {
		return nil, err
	}
	return rows, nil
}
