package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ncruces/go-sqlite3"
)

// Limits of a key-value store.
const (
	MaxKey  = 512     // bytes of a key
	MaxKeys = 1000    // keys of one List
	maxJSON = 1000000 // bytes of a value; a row is at most maxValue
	kvTime  = 5 * time.Second
)

// A KV is one tenant's key-value store. Keys are UTF-8 text, values JSON.
type KV struct {
	store  *Store
	tenant string
}

// KV returns the tenant's key-value store.
func (s *Store) KV(tenant string) *KV { return &KV{s, tenant} }

// An Entry of a KV.
type Entry struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// Get returns a value, or ErrNotFound.
func (k *KV) Get(ctx context.Context, key string) (value json.RawMessage, err error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	err = k.use(ctx, "SELECT value FROM kv WHERE key = ?1", func(_ *conn, st *sqlite3.Stmt) error {
		if err := st.BindText(1, key); err != nil {
			return err
		}
		if st.Step() {
			value = json.RawMessage(st.ColumnText(0))
		} else if st.Err() == nil {
			return ErrNotFound
		}
		return st.Err()
	})
	return value, err
}

// Put sets a value, which must be JSON.
func (k *KV) Put(ctx context.Context, key string, value json.RawMessage) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if len(value) > maxJSON {
		return overLimit("value", fmt.Sprint(maxJSON), "the value is too large")
	}
	if !json.Valid(value) || !utf8.Valid(value) {
		return failure(KindParams, "value: is not JSON in UTF-8")
	}
	const sql = "INSERT INTO kv (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
	return k.use(ctx, sql, func(_ *conn, st *sqlite3.Stmt) error {
		if err := errors.Join(st.BindText(1, key), st.BindText(2, string(value))); err != nil {
			return err
		}
		return st.Exec()
	})
}

// Delete removes a key and reports whether it was there.
func (k *KV) Delete(ctx context.Context, key string) (found bool, err error) {
	if err := checkKey(key); err != nil {
		return false, err
	}
	err = k.use(ctx, "DELETE FROM kv WHERE key = ?1", func(c *conn, st *sqlite3.Stmt) error {
		if err := st.BindText(1, key); err != nil {
			return err
		}
		if err := st.Exec(); err != nil {
			return err
		}
		found = c.db.Changes() > 0
		return nil
	})
	return found, err
}

// List returns the keys that begin with prefix and follow the key after (""
// for the first), in the order of their bytes, at most limit of them (0 means
// 100). To go on, call it again with the last one.
func (k *KV) List(ctx context.Context, prefix, after string, limit int) (list []string, err error) {
	if len(prefix) > MaxKey || len(after) > MaxKey {
		return nil, overLimit("value", fmt.Sprint(MaxKey), "the prefix or the key is too long")
	}
	switch {
	case limit == 0:
		limit = 100
	case limit < 0 || limit > MaxKeys:
		return nil, &Error{Kind: KindParams, Message: "limit: is out of range", Allowed: fmt.Sprint("1 to ", MaxKeys), Offset: -1}
	}
	list = []string{}
	err = k.use(ctx, "SELECT key FROM kv WHERE key >= ?1 AND key > ?2 ORDER BY key LIMIT ?3", func(_ *conn, st *sqlite3.Stmt) error {
		if err := errors.Join(st.BindText(1, prefix), st.BindText(2, after), st.BindInt(3, limit)); err != nil {
			return err
		}
		for st.Step() {
			key := st.ColumnText(0)
			if !strings.HasPrefix(key, prefix) {
				break // all with the prefix stand together
			}
			list = append(list, key)
		}
		return st.Err()
	})
	return list, err
}

func checkKey(key string) error {
	switch {
	case key == "":
		return failure(KindParams, "key: is empty")
	case len(key) > MaxKey:
		return overLimit("value", fmt.Sprint(MaxKey), "the key is too long")
	case !utf8.ValidString(key) || strings.ContainsRune(key, 0):
		return failure(KindParams, "key: is not UTF-8, or holds a NUL character")
	}
	return nil
}

// use runs f with a prepared statement of the tenant's key-value store.
func (k *KV) use(ctx context.Context, sql string, f func(*conn, *sqlite3.Stmt) error) error {
	lim := QueryLimits{Time: kvTime}
	limited, cancel := context.WithTimeout(ctx, lim.Time)
	defer cancel()
	c, err := k.store.acquire(limited, key{k.tenant, keys})
	if err != nil {
		return waited(ctx, err, lim)
	}
	defer k.store.release(c)
	err = c.with(limited, func() error {
		st, err := c.prepared(sql)
		if err != nil {
			return err
		}
		defer func() {
			_ = st.Reset() // its error is that of the step, which f returned
			_ = st.ClearBindings()
		}()
		return f(c, st)
	})
	if errors.Is(err, ErrNotFound) {
		return err
	}
	return c.explain(ctx, err, lim)
}

// prepared returns a statement of this package's own, which stays prepared.
func (c *conn) prepared(sql string) (*sqlite3.Stmt, error) {
	if st, ok := c.stmts[sql]; ok {
		return st, nil
	}
	c.ours = true
	defer func() { c.ours = false }()
	st, _, err := c.db.PrepareFlags(sql, sqlite3.PREPARE_PERSISTENT)
	if err != nil {
		return nil, err
	}
	if c.stmts == nil {
		c.stmts = make(map[string]*sqlite3.Stmt)
	}
	c.stmts[sql] = st
	return st, nil
}
