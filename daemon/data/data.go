package data

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// ErrNotFound says that a key does not exist.
var ErrNotFound = errors.New("data: no such key")

// QueryLimits bound one query; zero fields take DefaultQueryLimits.
type QueryLimits struct {
	Rows  int           // rows of the answer
	Bytes int64         // bytes of the answer, as JSON
	Time  time.Duration // from start to end
}

// Rows is the answer of a query. Each value is nil, int64, float64, string or
// a Blob; MarshalJSON says how they cross.
type Rows struct {
	Columns []string `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// Result of an Exec.
type Result struct {
	Changes      int64 `json:"changes"`
	LastInsertID int64 `json:"last_insert_id"`
}

// A Store holds all tenants' data.
type Store struct{}

// Open opens the store in dir.
func Open(dir string) (*Store, error) { return nil, errors.ErrUnsupported }

// Close closes all databases.
func (s *Store) Close() error { return errors.ErrUnsupported }

// Query runs one read-only statement. params is a JSON array, a JSON object
// (named parameters) or empty.
func (s *Store) Query(ctx context.Context, tenant, sql string, params json.RawMessage, lim QueryLimits) (*Rows, error) {
	return nil, errors.ErrUnsupported
}

// Exec runs statements for the service itself and may write.
func (s *Store) Exec(ctx context.Context, tenant, sql string, params json.RawMessage) (Result, error) {
	return Result{}, errors.ErrUnsupported
}

// RemoveTenant deletes all data of a tenant.
func (s *Store) RemoveTenant(ctx context.Context, tenant string) error { return errors.ErrUnsupported }

// KV returns the tenant's key-value store.
func (s *Store) KV(tenant string) *KV { return &KV{} }

// A KV is one tenant's key-value store. Values are JSON.
type KV struct{}

// An Entry of a KV.
type Entry struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// Get returns a value, or ErrNotFound.
func (k *KV) Get(ctx context.Context, key string) (json.RawMessage, error) {
	return nil, errors.ErrUnsupported
}

// Put sets a value.
func (k *KV) Put(ctx context.Context, key string, value json.RawMessage) error {
	return errors.ErrUnsupported
}

// Delete removes a key and reports whether it was there.
func (k *KV) Delete(ctx context.Context, key string) (bool, error) {
	return false, errors.ErrUnsupported
}

// List returns the keys with a prefix in order, at most limit, after the key
// "after".
func (k *KV) List(ctx context.Context, prefix, after string, limit int) ([]string, error) {
	return nil, errors.ErrUnsupported
}
