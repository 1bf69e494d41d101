// Package guests knows which interpreter binaries the isolates run: the npm
// package, its version and integrity, and the checksum of the one file that is
// used. No third-party file is in the repository; isolate/fetchguests puts the
// files in place and Load checks them whenever an engine starts.
//
// Package isolate and isolate/fetchguests call it. It imports the standard
// library only and must never open the network.
package guests
