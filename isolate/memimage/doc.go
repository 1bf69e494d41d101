// Package memimage gives WebAssembly instances a linear memory that is a
// private, copy-on-write mapping of an image: the memory of an interpreter that
// was booted once, kept in a sealed memfd. What one has of its own can be taken
// as a Delta and applied to others.
//
// The engines under isolate call it. It may import wazero's experimental
// interfaces and golang.org/x/sys; it knows nothing of any interpreter.
//
// It must never give a memory back as clean without having dropped or
// overwritten every page that an instance may have written.
package memimage
