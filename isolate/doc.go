// Package isolate runs code of tenants in WebAssembly instances: a clean
// memory image for each call, metered by our own pass over the binary, with
// nothing reachable that the request did not name.
//
// The daemon calls it. A Pool has two implementations: worker processes
// (NewWorkers, the default), each without any right of its own, and in-process
// (NewInProcess, for tests and very small hosts). The role "isolate-worker" of
// the daemon's binary is WorkerMain.
//
// It may import isolate/wasmbin and the internal packages; never the daemon,
// the jail or the proxy. It must never give code a host directory, a socket or
// a host's error text, nor trust a frame that a worker sent: what a worker
// says is hostile, because the code inside may have taken it over.
package isolate
