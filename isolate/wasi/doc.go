// Package wasi answers WASI preview 1, all of it, out of memory: arguments and
// environment, three streams, clocks, randomness, waiting, and a file system
// that is a tree in memory, begins with an empty /tmp and the files given, and
// is gone with the run.
//
// isolate/cpython and isolate/wasm call it: they export Functions to their
// guests, with a System for each run, and answer as its Host. It may import
// wazero's API and the standard library; it knows nothing of tenants, requests
// or engines.
//
// What it costs is charged: Host.Charge gets units of about one simple
// instruction for what grows with an argument, so that no call works unmetered.
//
// It must never open a host's file, directory or socket, look at the host's
// environment, arguments or clock, trust a pointer or length that a guest gives,
// or hold more for a guest than Host.Room allows. Sockets do not exist: their
// calls answer ENOSYS. There is no way above the root, also not through links.
package wasi
