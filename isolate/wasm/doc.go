// Package wasm compiles and runs WebAssembly modules that tenants bring: WASI
// preview 1 out of memory (isolate/wasi), and one import module of our own.
//
// Package isolate calls it, in the worker process of the tenant whose module it
// is. It may import isolate/memimage, isolate/wasi, isolate/wasmbin, isolate/wasmvm and wazero;
// it knows nothing of tenants, requests or grants.
//
// # What a module is
//
// A core WebAssembly 2.0 binary. It exports _start, the way of commands, or a
// function run without parameters, whose result is nothing or an i32, the exit
// status; where it also exports _initialize, that is called first. A start
// function runs before either. Memory is its own. Every call gets a new
// instance.
//
// # The module sandboxd
//
// Beside WASI a module may import these functions. Texts are UTF-8 in linear
// memory, given by address and length; a text that is not inside the memory ends
// the run.
//
//	input(ptr, len i32) i32    copies the first len bytes of the input, JSON,
//	                           and returns how many it has. It is on standard
//	                           input as well.
//	call(ptr, len i32) i32     calls {"binding","method","args"} and returns the
//	                           length of the answer, which is {"value": …} or
//	                           {"error": {"message"}}. It waits. fetch is
//	                           {"binding":"fetch","method":"fetch","args":
//	                           [{"url","method","headers":[[name,value]],"body"}]}
//	                           with a body in base64.
//	read(ptr, len i32) i32     copies the first len bytes of the answer, returns
//	                           how many those were, and forgets the answer.
//	result(ptr, len i32)       makes a JSON value the run's result; the last one
//	                           counts.
//	log(level, ptr, len i32)   logs a line; level is 0 debug, 1 info, 2 warn, 3
//	                           error.
//
// It must never compile a module that was not admitted, run one that is not
// metered, or give one a function beside these.
package wasm
