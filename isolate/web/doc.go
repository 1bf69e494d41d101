// Package web is what the web interfaces of JavaScript do on this side of the
// border, because well-kept Go libraries do it better than a polyfill in the
// image could: URLs as the URL Standard has them, and the encodings of the
// Encoding Standard.
//
// Package isolate calls it, in a worker, with what the code of a run gives: all of
// it is hostile. It imports none of our packages.
//
// Each function is one of its arguments alone, and takes time that grows with
// their length and no faster.
package web
