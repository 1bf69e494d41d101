// Package cpython drives CPython 3.12, compiled to WebAssembly, under wazero.
//
// The binary exports nothing but _start. An Engine runs that once, with a script
// (boot.py) that imports the common part of the standard library and then asks
// for the time; in the middle of that call the host keeps the linear memory and
// the stack pointer as an image (isolate/memimage). A VM is an instance over a
// private, copy-on-write mapping of the image, in which the script's dispatch
// function is called through its type's tp_call slot, as if the frames of
// _start, which nobody returns into, had gone on. The code is metered by
// isolate/wasmbin: when its fuel runs out the Hooks of the VM are asked whether
// it may go on. What it shares with other interpreters is in isolate/wasmvm.
//
// The standard library is in the binary's data, behind the guest's own virtual
// file system. All other files are in a tree in memory that a run begins with and
// that ends with it. Of the host the guest sees a clock, randomness and three
// descriptors, all of them answered by Hooks; there is no file, directory,
// environment variable or socket of the host's.
//
// Package isolate calls it. It may import isolate/memimage, isolate/wasi,
// isolate/wasmvm, isolate/wasmbin, wazero and golang.org/x/sys; it knows nothing
// of tenants, requests or limits.
//
// It must never hand the guest anything but what Hooks answers, trust a pointer
// or length that the guest gives, or reuse an instance that is not provably as
// new (see wasmvm.Instance.Restore).
package cpython
