// Command demo is what `make demo` runs: both halves of sandboxd on real input,
// each step printed as a person would want to read it.
//
// It starts a "world" (an HTTPS API and a git server in a network namespace of
// their own), then `sandboxd dev`, and drives it with sandboxctl only, as a
// newcomer would. It ends with everything gone and says so from an inventory of
// the machine taken before and after; anything left, or any step that does not
// come out as described, makes it fail.
//
// It must never talk to anything but the machine itself and the package
// registry that npm is set up with.
package main
