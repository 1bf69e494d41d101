package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"

	"sandboxd/internal/confine"
	"sandboxd/internal/ipc"
	"sandboxd/isolate/cpython"
	"sandboxd/isolate/guests"
	"sandboxd/isolate/quickjs"
)

// workerFD is the descriptor of a worker's socket to the daemon.
const workerFD = 3

// workerProbe, in a test build, is run after the confinement and tells what it
// could do. It stands for native code of an attacker.
var workerProbe func() map[string]string

// WorkerMain is the role "isolate-worker": it takes from the daemon what it
// needs, gives up every right, serves runs until its socket is closed, and
// never returns.
func WorkerMain() {
	conn, err := ipc.FromFDWaiting(workerFD, maxFrame)
	if err == nil {
		err = serveWorker(conn)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "isolate worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveWorker(conn *ipc.Conn) error {
	w := &workerSide{conn: conn, runs: map[uint64]*workerRun{}, runner: make(chan func()), ended: make(chan error, 1)}
	ready, err := w.prepare(context.Background())
	if err != nil {
		ready.Error = err.Error()
	}
	b, merr := encodeJSON(ready)
	if merr != nil {
		return merr
	}
	if serr := w.send(&frame{kind: frameReady, data: b}); err != nil || serr != nil {
		return errors.Join(err, serr)
	}
	if w.engines == nil {
		return serveCompiler(conn)
	}
	// One processor for each worker, and as many workers as there are
	// processors: what is on its way wakes no thread that looks for work where
	// there is none, and the runtime's spinning took more of a small call than
	// its code. Compiling is over, which uses all of them. Beside a run that is
	// long there are more, see turns.
	// A tenant's own modules may compute side by side: only it has the worker.
	if w.engines.modules == nil {
		runtime.GOMAXPROCS(1)
		ourTurns = newTurns()
		ourTurns.incoming, ourTurns.waiting = w.incoming, w.follow
		w.alone = true
	} else if err := conn.UsePoller(); err != nil {
		return err
	}
	w.receiving = true
	w.spawn(w.serve)
	return <-w.ended
}

// endOf is nil if the daemon has closed the socket.
func endOf(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// A workerSide is a worker as it sees itself.
type workerSide struct {
	conn    *ipc.Conn
	engines *engines

	// alone: a run that is the only one is done by the goroutine that received
	// it; see receive.go.
	alone bool
	ended chan error // one place: why nothing is received any more
	// linger and patience are of who receives; see await.
	linger   bool
	patience patience

	mu        sync.Mutex
	runs      map[uint64]*workerRun
	receiving bool          // a goroutine does, or is about to
	read      chan struct{} // closed with the next frame; nil while nobody waits

	runner chan func() // a goroutine that has run something waits here
	waits  atomic.Bool // there is one
}

// softMemory is what the collector tries to keep the worker's own memory below.
const softMemory = 256 << 20

// prepare makes the engine and then confines the process: after that nothing
// can be opened any more, and nothing hostile was read before.
func (w *workerSide) prepare(ctx context.Context) (ready readyMessage, err error) {
	payload, files, err := w.conn.Recv()
	if err != nil {
		return ready, err
	}
	defer closeAll(files)
	f, err := decodeFrame(payload, string(rune(frameHello)))
	if err != nil {
		return ready, err
	}
	hello, err := decodeJSON[helloMessage](f.data)
	if err != nil {
		return ready, err
	}
	debug.SetMemoryLimit(softMemory)
	if !hello.Compiler {
		if err := w.boot(ctx, hello, files); err != nil {
			return ready, err
		}
	}
	report, err := confine.Apply(confine.Profile{Name: "isolate-worker", Seccomp: confine.WorkerFilter()})
	if err != nil {
		return ready, err
	}
	ready.Filters, ready.LandlockABI = report.Filters, report.LandlockABI
	if workerProbe != nil {
		ready.Probe = workerProbe()
	}
	return ready, nil
}

func (w *workerSide) boot(ctx context.Context, hello *helloMessage, files []*os.File) error {
	w.engines = &engines{}
	if hello.Kind == kindWasm {
		w.engines.modules = newModules()
		return nil
	}
	if len(files) < 2 || hello.Python != nil && len(files) < 4 {
		return errors.New("the daemon passed too few descriptors")
	}
	// The directory's own path leads through places that this user may not
	// enter; the descriptor does not.
	cache := "/proc/self/fd/" + strconv.Itoa(int(files[1].Fd()))
	if hello.Kind != kindPython {
		if err := w.bootJS(ctx, hello, files[0], cache); err != nil {
			return err
		}
	}
	if hello.Python == nil {
		return nil
	}
	python := &cpython.Snapshot{Module: files[2], Image: files[3], State: *hello.Python}
	var err error
	w.engines.python, err = newPython(ctx, python, cache)
	if err != nil {
		fmt.Fprintln(os.Stderr, "isolate worker: compile without the cache:", err)
		w.engines.python, err = newPython(ctx, python, "")
	}
	return err
}

func (w *workerSide) bootJS(ctx context.Context, hello *helloMessage, guest *os.File, cache string) error {
	wasm, err := io.ReadAll(io.NewSectionReader(guest, 0, math.MaxInt64))
	if err != nil {
		return fmt.Errorf("read the guest: %w", err)
	}
	js := jsGuest{wasm, hello.Streams}
	if err := errors.Join(guests.Check(quickjsGuest, wasm), guests.Check(streamsGuest, []byte(js.streams))); err != nil {
		return err
	}
	w.engines.js, err = quickjs.New(ctx, engineOptions(js, cache))
	if err != nil {
		// The code is not in the cache if the daemon is another build than we
		// are: we cannot add it, but compile it for ourselves.
		fmt.Fprintln(os.Stderr, "isolate worker: compile without the cache:", err)
		w.engines.js, err = quickjs.New(ctx, engineOptions(js, ""))
	}
	return err
}

func (w *workerSide) send(f *frame) error { return w.conn.Send(f.encode(nil)) }

// A workerRun is the Host and caller of a run inside the worker: it asks the
// daemon. Answers reach the run in the order in which they came.
type workerRun struct {
	w      *workerSide
	id     uint64
	cancel context.CancelCauseFunc
	// most is what its answers may hold here before the code has taken them.
	most int64
	// codes gets the code of the function.
	codes chan *codeMessage

	mu    sync.Mutex
	held  int64
	calls map[uint64]func(json.RawMessage, error)
}

func (r *workerRun) finish(res *Result, err error) {
	r.w.ends(r.id)
	if err != nil {
		res = &Result{Status: StatusError, Phase: PhaseNotStarted, Error: &Error{Kind: KindInternal, Message: "the worker has no isolate to give"}}
		fmt.Fprintln(os.Stderr, "isolate worker:", err)
	}
	b, err := (&frame{kind: frameResult, run: r.id}).encodeWith(res)
	if err == nil {
		err = r.w.conn.Send(b)
	}
	if err != nil {
		// Without its result the daemon waits for the deadline; it may as well
		// know at once.
		fmt.Fprintln(os.Stderr, "isolate worker:", err)
		os.Exit(1)
	}
}

// Event implements Host.
func (r *workerRun) Event(e Event) {
	b, err := (&frame{kind: frameEvent, run: r.id}).encodeWith(e)
	if err != nil {
		return // there is nothing in it that cannot be encoded
	}
	// A broken socket shows in serve.
	_ = r.w.conn.Send(b)
}

// Call implements Host; a run calls call.
func (r *workerRun) Call(context.Context, Call) (json.RawMessage, error) {
	return nil, errors.ErrUnsupported
}

// call implements caller.
func (r *workerRun) call(c Call, answered func(json.RawMessage, error)) func() {
	id := uint64(c.Nth)
	r.mu.Lock()
	r.calls[id] = answered
	r.mu.Unlock()
	// A broken socket shows in serve.
	_ = r.w.send(&frame{kind: frameCall, run: r.id, call: id, binding: c.Binding, method: c.Method, data: c.Args})
	return func() { _ = r.w.send(&frame{kind: frameDrop, run: r.id, call: id}) }
}

// answer is called by the goroutine that receives.
func (r *workerRun) answer(f *frame) {
	r.mu.Lock()
	answered := r.calls[f.call]
	delete(r.calls, f.call)
	if answered != nil {
		r.held += int64(len(f.data))
	}
	held := r.held
	r.mu.Unlock()
	switch {
	case answered == nil:
	case held > r.most:
		r.cancel(limitError("answers", held, r.most))
	case f.ok:
		answered(f.data, nil)
	default:
		answered(nil, errors.New(f.binding))
	}
}

// taken implements caller.
func (r *workerRun) taken(size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held -= int64(size)
}

// compiled implements loader.
func (r *workerRun) compiled() { _ = r.w.send(&frame{kind: frameLoaded, run: r.id}) }

// waiting implements caller.
func (r *workerRun) waiting(taken int) {
	_ = r.w.send(&frame{kind: frameWaiting, run: r.id, call: uint64(taken)})
}

// end implements caller: with the result the daemon gives up what is under way.
func (r *workerRun) end() {}
