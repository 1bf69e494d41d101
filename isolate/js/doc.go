// Package js is what a JavaScript run finds besides the language: console,
// timers, fetch, the bindings and the web interfaces. Source makes one script of
// the files, which isolate/quickjs evaluates before it takes its image.
//
// Package isolate calls it. It imports nothing of ours.
//
// The parts of the closure see `host`, the one function that reaches the host.
// It must never become reachable by the code of a run, and code may have changed
// every global and prototype when a function here runs: what that needs of the
// language is taken in base.js. url.js stands outside of the closure.
package js
