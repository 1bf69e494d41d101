// Package wasmbin reads and rewrites WebAssembly binaries.
package wasmbin
