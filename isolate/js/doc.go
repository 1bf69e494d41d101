// Package js is what a JavaScript run finds besides the language: console,
// timers, fetch, the bindings and the web interfaces. Source makes one script of
// the files, which isolate/quickjs evaluates before it takes its image.
//
// Package isolate calls it. It imports nothing of ours.
//
// The files are the parts of one function that sees `host`, through which the
// host is reached. It must never become reachable by the code of a run, and code
// may have changed every global and prototype when a function here runs: what
// the way to the host needs of the language is taken in base.js; elsewhere code
// that changes a prototype harms itself alone. Polyfills are evaluated outside of
// the function and never see `host`.
//
// Own code rather than a polyfill is what is small, or what the host does with a
// library: addresses, encodings other than UTF-8, digests.
package js
