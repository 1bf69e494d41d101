package isolate

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"sandboxd/isolate/guests"
)

// Config of a pool.
type Config struct {
	// Exe is the binary that a worker executes with Args; empty means
	// /proc/self/exe with "role isolate-worker".
	Exe string
	// Args follow the program's name.
	Args []string
	// UIDBase is the user and group of the first worker, the next has the next
	// one. 0 means DefaultUIDBase.
	UIDBase uint32
	// GuestDir holds the guests that fetchguests put there (quickjs.wasm,
	// streams.js, python.wasm).
	GuestDir string
	// CacheDir holds compiled guests between starts. It must be writable by
	// root alone; empty means no cache.
	CacheDir string
	// Workers is the number of worker processes; 0 means one more than
	// there are processors, at most 9. In-process it is ignored.
	Workers int
	// MaxRuns is the number of runs at once over the whole pool; 0 means 64
	// per worker. One tenant has at most half of what the others leave of them.
	// Who finds no place waits for a second, with as many others as there are
	// places, and is then answered ErrBusy; in-process at once.
	MaxRuns int
	// TenantWorkers is the number of worker processes that belong to one tenant
	// each, at most; 0 means 16. TenantIdle is how long one is kept that nobody
	// uses; 0 means 30 s. In-process there are none.
	TenantWorkers int
	TenantIdle    time.Duration
	// Log gets what an operator should know; nil discards it.
	Log *slog.Logger
	// Preparing, if not nil, is told what is being done for a language that is
	// not there yet, how far that is, and when it is there. It is for people.
	Preparing func(text string)
}

// DefaultUIDBase is the first worker's uid when Config names none.
const DefaultUIDBase = 0x38000010

var (
	// ErrClosed says that the pool was closed.
	ErrClosed = errors.New("isolate: pool is closed")
	// ErrBusy says that as many runs are under way as the pool allows, of all
	// tenants or of this one; the caller may try again.
	ErrBusy = errors.New("isolate: too many runs at once")
)

// A WorkerError says that the worker process that held a run failed or was
// killed.
type WorkerError struct {
	Worker int
	Reason string
	// Phase is PhaseEffectsPossible if the run had made a host call, else
	// PhaseStarted: it may be run again without harm.
	Phase string
	Err   error
}

func (e *WorkerError) Error() string {
	s := fmt.Sprintf("isolate: worker %d: %s", e.Worker, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *WorkerError) Unwrap() error { return e.Err }

// A RequestError says that a request is not well formed; nothing ran.
type RequestError struct {
	Field, Message string
	// Limit, Used and Allowed are set where the request is well formed and too
	// large: Limit is "code".
	Limit, Used, Allowed string
}

func (e *RequestError) Error() string { return "isolate: " + e.Field + ": " + e.Message }

// A GuestError says that a guest artefact is missing or not the one that the
// manifest pins.
type GuestError = guests.Error
