package isolate

import (
	"context"
	"errors"
)

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
