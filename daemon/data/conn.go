package data

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/ncruces/go-sqlite3"
)

// Kinds of connection.
type kind int

const (
	reader      kind = iota // the database, read-only
	writer                  // the database, for the service
	keys                    // the key-value store
	deployments             // no connection: the deployed functions' files
)

// A key names connections that are alike.
type key struct {
	tenant string
	kind   kind
}

func (k key) file() string {
	if k.kind == keys {
		return "kv.sqlite3"
	}
	return "db.sqlite3"
}

// maxValue is the size in bytes of the largest text, blob and row.
const maxValue = 1 << 20

// keepWork is the longest that a connection may have worked for a statement to
// be kept: what worked longer may hold much memory, and opening is cheap.
const keepWork = 20 * time.Millisecond

// A conn is a connection in use by one goroutine, or idle in the pool.
type conn struct {
	store *Store
	key   key
	db    *sqlite3.Conn
	stmts map[string]*sqlite3.Stmt // of the key-value store, by SQL
	// ours says that the statement being prepared is this package's.
	ours   bool
	denied string // what the authorizer refused last
	// spoilt connections are closed and not kept; broken ones cannot even be
	// closed in order.
	spoilt, broken bool
}

// limits of one connection. The depths keep SQLite's recursion inside its stack
// of 64 KiB.
var limits = map[sqlite3.LimitCategory]int{
	sqlite3.LIMIT_LENGTH:              maxValue,
	sqlite3.LIMIT_SQL_LENGTH:          64 << 10,
	sqlite3.LIMIT_COLUMN:              500,
	sqlite3.LIMIT_EXPR_DEPTH:          100,
	sqlite3.LIMIT_PARSER_DEPTH:        200,
	sqlite3.LIMIT_COMPOUND_SELECT:     50,
	sqlite3.LIMIT_VDBE_OP:             1_000_000,
	sqlite3.LIMIT_FUNCTION_ARG:        100,
	sqlite3.LIMIT_ATTACHED:            0,
	sqlite3.LIMIT_LIKE_PATTERN_LENGTH: 500,
	sqlite3.LIMIT_VARIABLE_NUMBER:     1000,
	sqlite3.LIMIT_TRIGGER_DEPTH:       10,
	sqlite3.LIMIT_WORKER_THREADS:      0,
}

// openConn opens a connection; the tenant's folder and file are made if need be.
func (s *Store) openConn(ctx context.Context, k key) (c *conn, err error) {
	dir := filepath.Join(s.dir, k.tenant)
	path := filepath.Join(dir, k.file())
	query := "?mode=rwc"
	if k.kind == reader {
		query = "?mode=ro"
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	c = &conn{store: s, key: k}
	err = c.guard(func() error {
		uri := (&url.URL{Scheme: "file", Path: path}).String() + query
		c.db, err = sqlite3.OpenContext(sqlite3.WithMaxMemory(ctx, s.opts.Memory), uri)
		if err != nil {
			return err
		}
		return c.setUp()
	})
	if err != nil {
		c.close()
		return nil, fmt.Errorf("data: open %s: %w", k.file(), err)
	}
	return c, nil
}

// setUp configures a new connection. The authorizer comes last.
func (c *conn) setUp() error {
	// Nothing temporary goes to a file, and the schema is not to be trusted.
	sql := "PRAGMA temp_store=MEMORY; PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;"
	if c.key.kind == reader {
		sql += "PRAGMA query_only=ON;"
	} else {
		sql += fmt.Sprintf("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA journal_size_limit=1048576; PRAGMA max_page_count=%d;",
			c.store.opts.Disk/pageSize)
	}
	if c.key.kind == keys {
		sql += "CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
	}
	if err := c.db.BusyTimeout(5 * time.Second); err != nil {
		return err
	}
	if err := c.db.Exec(sql); err != nil {
		return err
	}
	for id, n := range limits {
		c.db.Limit(id, n)
	}
	for op, on := range map[sqlite3.DBConfig]bool{
		sqlite3.DBCONFIG_DEFENSIVE:       true,
		sqlite3.DBCONFIG_TRUSTED_SCHEMA:  false,
		sqlite3.DBCONFIG_DQS_DML:         false,
		sqlite3.DBCONFIG_DQS_DDL:         false,
		sqlite3.DBCONFIG_WRITABLE_SCHEMA: false,
	} {
		now, err := c.db.Config(op, on)
		if err != nil {
			return err
		}
		if now != on {
			return fmt.Errorf("SQLite does not take configuration %d", op)
		}
	}
	if err := registerFunctions(c.db); err != nil {
		return err
	}
	return c.db.SetAuthorizer(c.authorize)
}

// pageSize is SQLite's default, which is the one that new files get.
const pageSize = 4096

// guard runs f and turns a panic into an error: go-sqlite3 panics when memory
// runs out or SQLite's stack does. The connection is beyond use afterwards.
func (c *conn) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.broken = true
			err = c.crashed(p)
		}
	}()
	return f()
}

// with runs f on the connection until ctx is done.
func (c *conn) with(ctx context.Context, f func() error) error {
	c.denied = ""
	start := time.Now()
	defer func() { c.spoilt = time.Since(start) > keepWork }()
	return c.guard(func() error {
		c.db.SetInterrupt(ctx)
		defer c.db.SetInterrupt(context.Background())
		return f()
	})
}

// exec runs a statement of this package's own.
func (c *conn) exec(sql string) error {
	c.ours = true
	defer func() { c.ours = false }()
	return c.db.Exec(sql)
}

// close frees everything that the connection holds, in whatever state it is.
func (c *conn) close() {
	if c.db == nil {
		return
	}
	if !c.broken {
		err := c.guard(func() error {
			for _, st := range c.stmts {
				_ = st.Close() // the error of its last use
			}
			return c.db.Close()
		})
		if err == nil && !c.broken {
			return
		}
	}
	if err := abandon(c.db); err != nil {
		c.store.log.Error("a database connection cannot be freed", "error", err)
	}
}
