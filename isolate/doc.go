// Package isolate runs code of tenants in WebAssembly instances: a clean
// memory image for each call, metered by our own pass over the binary, with
// nothing reachable that the request did not name.
//
// The daemon calls it. A Pool has two implementations: worker processes
// (NewWorkers, the default), each without any right of its own, and in-process
// (NewInProcess, for tests and very small hosts). The role "isolate-worker" of
// the daemon's binary is WorkerMain.
//
// A run's way through NewWorkers' pool: Request → its TypeScript to a compiler
// process (compile.go) → the worker with the fewest runs (workers.go, remote*.go)
// → a clean VM of isolate/quickjs (run.go, calls.go), which talks to the code
// through the prelude (js/) → Result. Host calls and output go back the same
// way while it runs. Python goes to a VM of isolate/cpython instead (python.go,
// pythonio.go, pythonresult.go), whose snapshot the daemon boots once and hands
// to the workers (interpreters.go); without a cache that comes later than the
// rest (latepython.go). What both interpreters share is in isolate/wasmvm.
//
// In a worker the thread that a message wakes does the run, and waits for the next
// one (receive.go): for a moment awake, as the pool does for the answer
// (process.go), where nothing else runs and that was worth it lately.
//
// A tenant's own Wasm module (wasmrun.go, modules.go) runs in a worker process of
// that tenant's, and so does all code of one whose isolation is strict (own.go,
// tenants.go): started when it is wanted, kept while it is used, bounded in
// number. There the module is admitted, metered and compiled by isolate/wasm.
//
// A deployed function (function.go) is sent to a worker once (sendcode.go), which
// keeps it under a key of tenant, code and grants (kept.go). Its module is
// evaluated for no call, and the pages that this wrote are kept as well
// (prepare.go): calls begin with them in a clean VM. A module that does what is
// another thing in each call is evaluated anew in each.
//
// What ends a run: every 60 to 200 µs of work the guest asks for fuel, and is
// asked in turn for its processor time, its deadline and its caller (run.Tick);
// memory that would grow too far, output, results and calls are counted where
// they come by. A worker that keeps a run 500 ms beyond its deadline, breaks the
// protocol or holds too much memory is killed; only the runs in it fail.
//
// Who computes: a worker's runs take turns (turns.go), those that are short so far
// in one lane and those that have computed for long, or move much in one go, in
// another with a processor of its own. So a small call waits for a slice of 2 ms at
// most, whatever its neighbours do.
//
// Processor time is what the kernel counts for the run's thread (cputime.go). In
// a deterministic run it is counted in fuel instead, and ends at the same
// instruction each time.
//
// A deterministic run shows the same each time: clock and randomness are its own
// (clock.go), and the answers of its calls reach it in one order, which an
// OrderHost notes or sets (hostcalls.go). What else decides is the engine, which
// has a name (identity.go).
//
// It may import isolate/quickjs, isolate/cpython, isolate/guests, isolate/js, isolate/web,
// isolate/wasm, isolate/wasmbin and the internal packages; never the daemon, the jail or the proxy. It must never give
// code a host directory, a socket or a host's error text, nor trust a frame that
// a worker sent: what a worker says is hostile, because the code inside may have
// taken it over.
package isolate
