// Package wasmvm is what the interpreters under isolate share: a metered module
// compiled by wazero (Code), instances of it over a memory image whose fuel,
// globals and end are kept account of (Instance), what code has made of one
// (Saved), the functions that they
// import (Host), and a pool of clean ones (Pool).
//
// isolate/quickjs and isolate/cpython call it. It may import isolate/memimage,
// isolate/wasmbin and wazero; it knows nothing of any interpreter, of tenants or
// of requests.
//
// It must never let an instance be used again whose code could have changed
// what Restore does not put back (Resettable), or which was ended in the middle.
package wasmvm
