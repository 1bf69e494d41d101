package isolate

import (
	"context"
	"encoding/json"
	"time"
)

// A Pool runs code in fresh isolates.
type Pool interface {
	// Run runs r to its end, to a limit or until ctx is done, and always
	// returns a Result unless the pool itself could not run it (ErrClosed,
	// ErrBusy, a failed worker: *WorkerError).
	Run(ctx context.Context, r *Request, host Host) (*Result, error)
	// Forget drops what is kept of a function so that its next call is quick:
	// code, pages of its module. With f nil it is all that is kept for the
	// tenant, and with an empty tenant for all. Runs under way are not touched,
	// and what they keep goes when they end.
	Forget(tenant string, f *Function)
	// Stats tells what the pool holds now.
	Stats() Stats
	// Close ends all runs and the workers.
	Close() error
}

// A Request is one run of code in an isolate.
type Request struct {
	Tenant string
	RunID  string
	// Language is "js", "ts", "python" or "wasm".
	Language string
	// Modules maps file names to source; Main names the entry. For wasm the
	// entry is a binary, and the others are files that it can read.
	Modules map[string]string
	Main    string
	// Args follow the program's name (wasm).
	Args []string
	// Strict has a worker process of the tenant's own run this. Wasm always has
	// one.
	Strict bool
	// Function, if not nil, stands for Language, Modules and Main, which are
	// not set then.
	Function *Function `json:"-"`
	// Prepare evaluates the function's module and does not call it; the Host is
	// not called either.
	Prepare bool
	// Input is the function's first argument, a JSON value; nil means null.
	Input json.RawMessage
	// Env are plain strings, seen as env.NAME beside the bindings.
	Env      map[string]string
	Bindings []Binding
	// Fetch gives the code a global fetch, answered by Host.Call with binding
	// "fetch". Without it there is none.
	Fetch  bool
	Limits Limits
	// Seed and Clock make the run deterministic when set: what the code can
	// observe then depends on nothing but the request and the answers of its
	// host calls in their order. The clock stands still but when the code has
	// nothing to do before its next timer, and CPU is counted in fuel.
	Seed  *uint64
	Clock *time.Time
	// Paced has an OrderHost told when the code waits.
	Paced bool
}

// deterministic tells whether anything is to be the same each time.
func (r *Request) deterministic() bool { return r.Seed != nil || r.Clock != nil }

// A Binding is seen by the code as env.<Name> with asynchronous methods. The
// one with the name LOG is answered inside, as Events.
type Binding struct {
	Name    string
	Methods []string
}

// Limits of one run; every field must be set (policy gives the defaults).
type Limits struct {
	Wall, CPU   time.Duration
	Memory      int64 // linear memory, bytes
	Output      int64 // console output, bytes
	Result      int64 // result value, bytes of JSON
	Calls       int   // host calls
	Requests    int   // fetch requests
	Concurrency int   // host calls under way at once
}

// A Host answers what a run asks of the world. Its methods are called
// concurrently and must not block beyond ctx.
type Host interface {
	// Call answers a host call; args is a JSON array. The error's text is
	// shown to the code, so it holds no secret and no host path.
	Call(ctx context.Context, c Call) (json.RawMessage, error)
	// Event receives console output and logs as they come.
	Event(e Event)
}

// An OrderHost is a Host that notes or decides in which order the code gets the
// answers of its calls. Its methods do not block, and only Waiting makes the run
// go no further.
type OrderHost interface {
	Host
	// Called tells of a call before Call is called, in the order of the calls.
	Called(nth int)
	// Answered tells of the answer that the code gets next: that of call nth.
	Answered(nth int, answer json.RawMessage, err error)
	// Waiting tells that the code took so many answers and can do nothing
	// before the next one. Only a request that is Paced has it called.
	Waiting(taken int)
}

// A StartHost is a Host that has something to put on record before its run may
// have any effect, and does it while the worker is at work already.
type StartHost interface {
	Host
	// Started is called at most once, on Run's goroutine, when the request is on
	// its way to a worker. Until it has returned no call is answered, no event
	// handed on and no result taken. With an error none of that ever happens: the
	// run is ended and Run returns the error. A run that ends before it got to a
	// worker may have it not called.
	Started() error
}

// A Call is one host call of a run.
type Call struct {
	// Nth counts the calls of a run from 1, in the order in which the code made
	// them. Calls that are refused before they reach the host have one, too.
	Nth     int
	Binding string
	Method  string
	Args    json.RawMessage
}

// FetchRequest is Args[0] of the call fetch/fetch; FetchResponse its answer.
type FetchRequest struct {
	URL     string      `json:"url"`
	Method  string      `json:"method"`
	Headers [][2]string `json:"headers"`
	Body    []byte      `json:"body,omitempty"` // base64 in JSON
	// Redirect is "follow" (also when empty), "manual": the redirect is the
	// answer, or "error".
	Redirect string `json:"redirect,omitempty"`
}

// FetchResponse is what the egress proxy let back.
type FetchResponse struct {
	Status     int         `json:"status"`
	StatusText string      `json:"statusText"`
	URL        string      `json:"url"`
	Headers    [][2]string `json:"headers"`
	Body       []byte      `json:"body"`
	// Redirected says that URL is where redirects led to.
	Redirected bool `json:"redirected,omitempty"`
}

// An Event is output of a running isolate.
type Event struct {
	Time  time.Time
	Kind  string // "log" (console.*, LOG), "stdout" or "stderr" (Python)
	Level string // debug, info, warn, error
	// Message is text from the code: hostile.
	Message string
	Data    json.RawMessage
}

// Status of a Result.
const (
	StatusOK     = "ok"
	StatusError  = "error"  // the code threw or was refused
	StatusKilled = "killed" // a limit or a cancellation ended it
)

// Phase says how far a run came, so that a caller knows whether to retry.
const (
	PhaseNotStarted      = "not_started"
	PhaseStarted         = "started"
	PhaseEffectsPossible = "effects_possible" // a host call was made
	PhaseFinished        = "finished"
)

// A Result is how a run ended.
type Result struct {
	Status string
	Phase  string
	Value  json.RawMessage
	// ExitCode is the status of a program that ended by itself (wasm).
	ExitCode *int
	Error    *Error
	Usage    Usage
	// Prepared is set where the Request said so and there is no Error.
	Prepared *Prepared
}

// Usage of one run.
type Usage struct {
	Wall, CPU  time.Duration
	MemoryPeak int64
	Output     int64
	Calls      int
	Requests   int
}

// Kinds of Error.
const (
	KindRejected = "code_rejected"  // syntax, size, unknown module
	KindThrown   = "code_error"     // the code threw
	KindLimit    = "limit_exceeded" // see Limit, Used, Allowed
	KindBinding  = "binding_error"  // a host call failed and was not caught
	KindCanceled = "canceled"       // the caller went away
	KindInternal = "internal"
)

// An Error explains a failed run to the person or model that must mend the
// code. All text in it is hostile.
type Error struct {
	Kind    string
	Message string
	File    string // the user's own file
	Line    int    // 1-based; 0 unknown
	Column  int
	// Source is the text of that line, shortened.
	Source string
	Stack  string
	// Limit is "wall", "cpu", "memory", "output", "lines", "timers", "calls",
	// "requests", "answers", "stack" or "result"; Used and Allowed are in the limit's own unit, as text.
	Limit, Used, Allowed string
	Hint                 string
}

func (e *Error) Error() string { return e.Kind + ": " + e.Message }

// Stats of a pool.
type Stats struct {
	Workers int
	// TenantWorkers are those that belong to one tenant each.
	TenantWorkers int
	Running       int
	Runs          uint64
	Killed        uint64
	// Preparing says what is being done for a language that is not there yet,
	// and how far that is. Runs in it wait.
	Preparing string
}
