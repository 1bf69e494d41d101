package isolate

import (
	"context"
	"errors"
)

// NewInProcess makes a pool that runs everything in this process.
func NewInProcess(ctx context.Context, cfg Config) (Pool, error) {
	return nil, errors.ErrUnsupported
}

// NewWorkers makes a pool of worker processes. It returns when all of them are
// confined and ready.
func NewWorkers(ctx context.Context, cfg Config) (Pool, error) {
	return nil, errors.ErrUnsupported
}

// WorkerMain is the role "isolate-worker": it serves runs on descriptor 3 until
// that is closed, and never returns.
func WorkerMain() {
	panic("not built yet")
}
