package pgquery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"sandboxd/daemon/service"
	"sandboxd/policy"
)

const (
	// MaxAnswer is the largest answer of a query, in bytes of JSON.
	MaxAnswer = 8 << 20

	maxMessage     = MaxAnswer + 1<<20 // of the server's protocol
	connectTimeout = 5 * time.Second
	idleTime       = 5 * time.Minute
	// cancelGrace is how long the server has to heed a cancellation.
	cancelGrace = 2 * time.Second
)

// An Error says why there are no rows. Message may be shown to code; Err is for
// the log.
type Error struct {
	// Fault tells whether the code's own arguments are at fault.
	Fault   bool
	Message string
	Err     error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// A DB is a database with its queries. It connects when it is first asked, and
// may be used by many goroutines.
type DB struct {
	sql   *policy.SQL
	pool  *pgxpool.Pool
	slots *service.Slots
}

// Open prepares a DB; it connects to nothing yet.
func Open(sql *policy.SQL) (*DB, error) {
	// Everything that the library would take from the environment or a home is
	// given here or set afterwards.
	cfg, err := pgxpool.ParseConfig("host=" + sql.Socket + " user=x dbname=x sslmode=disable passfile=/dev/null servicefile=/dev/null")
	if err != nil {
		return nil, fmt.Errorf("pgquery: %w", err)
	}
	path := filepath.Join(sql.Socket, ".s.PGSQL."+strconv.Itoa(sql.Port))
	c := &cfg.ConnConfig.Config
	c.Host, c.Port, c.Database, c.User, c.Password = sql.Socket, uint16(sql.Port), sql.Database, sql.Role, ""
	c.TLSConfig, c.Fallbacks, c.ConnectTimeout = nil, nil, connectTimeout
	c.RequireAuth = "none" // no password: the server knows us by our user
	c.MaxProtocolMessageBodyLen = maxMessage
	c.RuntimeParams = map[string]string{"application_name": "sandboxd", "default_transaction_read_only": "on", "timezone": "UTC",
		"client_encoding": "UTF8", "idle_in_transaction_session_timeout": "60000"}
	c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return service.Dial(ctx, path, sql.UID) }
	c.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	cfg.MaxConns, cfg.MinConns, cfg.MaxConnIdleTime = int32(sql.Concurrency), 0, idleTime
	// Without a context of its own the pool would connect nowhere, either.
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("pgquery: %w", err)
	}
	return &DB{sql: sql, pool: pool, slots: service.NewSlots(sql.Concurrency)}, nil
}

// Close ends the connections; no query may be under way.
func (db *DB) Close() { db.pool.Close() }

// Query makes the query of that name for the tenant and returns its rows as a
// JSON array of objects. args is a JSON array: the parameters in their order, or
// one object with them by name. Errors are *Error, or that of ctx.
func (db *DB) Query(ctx context.Context, tenant, name string, args json.RawMessage) (json.RawMessage, error) {
	q, ok := db.sql.Queries[name]
	if !ok {
		return nil, &Error{Fault: true, Message: "there is no such query"}
	}
	values, err := arguments(ctx, &q, args)
	if err != nil {
		return nil, err
	}
	give, err := db.slots.Take(ctx, tenant)
	if err != nil {
		return nil, &Error{Message: "the database had no time for the query", Err: err}
	}
	defer give()
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, db.failure(ctx, &q, err)
	}
	defer conn.Release()
	rows, err := db.read(ctx, conn.Conn(), tenant, name, &q, values)
	if err != nil {
		// A table has changed since the statement was prepared here: the next
		// connection prepares it anew.
		var pg *pgconn.PgError
		if errors.As(err, &pg) && (pg.Code == "0A000" || pg.Code == "26000") {
			_ = conn.Conn().Close(ctx)
		}
		return nil, db.failure(ctx, &q, err)
	}
	return rows, nil
}

// read makes the query in a transaction of its own. A connection on which
// something went wrong is not used again: Release looks at its state.
func (db *DB) read(ctx context.Context, conn *pgx.Conn, tenant, name string, q *policy.Query, values []json.RawMessage) (json.RawMessage, error) {
	// Only numbers of the policy are put into this text.
	ms := max(1, q.Timeout.Std().Milliseconds())
	if err := conn.PgConn().Exec(ctx, fmt.Sprintf("begin read only; set local statement_timeout = %d; set local lock_timeout = %[1]d", ms)).Close(); err != nil {
		return nil, err
	}
	st, err := conn.Prepare(ctx, "q_"+name, q.Text)
	if err != nil {
		return nil, err
	}
	params := []any{pgx.QueryResultFormats(formats(conn.TypeMap(), st.Fields)), tenant}
	if len(st.ParamOIDs) != len(values)+1 {
		return nil, fmt.Errorf("the statement has %d parameters, and the policy names %d besides the tenant", len(st.ParamOIDs), len(values))
	}
	for i, v := range values {
		p, err := param(conn.TypeMap(), q.Params[i].Name, st.ParamOIDs[i+1], v)
		if err != nil {
			return nil, err
		}
		params = append(params, p)
	}
	rows, err := conn.Query(ctx, st.Name, params...)
	if err != nil {
		return nil, err
	}
	out, err := collect(conn.TypeMap(), rows, q.MaxRows)
	rows.Close()
	if err == nil {
		err = rows.Err()
	}
	if err != nil {
		return nil, err
	}
	return out, conn.PgConn().Exec(ctx, "rollback").Close()
}

// failure says what may be said of an error.
func (db *DB) failure(ctx context.Context, q *policy.Query, err error) error {
	var own *Error
	var dial *service.Error
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &own):
		return own
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case errors.As(err, &dial):
		return &Error{Message: "its database is not available: " + strings.Replace(dial.Message, "its service", "it", 1), Err: err}
	case errors.As(err, &pg):
		return db.refused(q, pg)
	case ctx.Err() != nil:
		return &Error{Message: "the query took too long", Err: err}
	}
	return &Error{Message: "its database did not answer as it should; the daemon's log says more", Err: err}
}

// refused explains an error of the server. Its words are shown only where they
// are about the values that the code gave.
func (db *DB) refused(q *policy.Query, e *pgconn.PgError) error {
	switch {
	case strings.HasPrefix(e.Code, "22"):
		return &Error{Fault: true, Message: "the database cannot use the arguments: " + e.Message, Err: e}
	case e.Code == "57014", e.Code == "55P03":
		return &Error{Message: fmt.Sprintf("the query took longer than its %v", q.Timeout.Std()), Err: e}
	case e.Code == "25006":
		return &Error{Message: "the query of the policy would change something, and only reading is possible", Err: e}
	case strings.HasPrefix(e.Code, "28"):
		return &Error{Message: "its database does not let the daemon in; the operator has to map the daemon's user to the role (pg_ident.conf)", Err: e}
	case e.Code == "0A000" && strings.Contains(e.Message, "cached plan"):
		return &Error{Message: "the tables of its database have just changed; try again", Err: e}
	case strings.HasPrefix(e.Code, "53"):
		return &Error{Message: "its database has no room for the query now; try again", Err: e}
	}
	return &Error{Message: "the query failed through no fault of this code (SQLSTATE " + e.Code + "); the daemon's log says more", Err: e}
}
