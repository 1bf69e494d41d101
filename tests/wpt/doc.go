// Package wpt runs the public Web Platform Tests of the interfaces that
// JavaScript finds in an isolate, and the suite of a polyfill for fetch, in
// isolates as a run has them. expected.json names each test that fails, with the
// reason: a failure that does not stand there fails the suite, and so does a
// test that stands there and passes.
//
// `make wpt` fetches the files, pinned by their hashes; `make test-unit` calls
// it. It must never fetch anything itself, nor change what a test asks for.
package wpt
