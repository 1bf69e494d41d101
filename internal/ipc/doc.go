// Package ipc carries framed messages, with file descriptors, over a Unix
// stream socket between the daemon and the processes it starts (isolate
// worker, egress proxy, sandbox-init).
//
// Who calls it: isolate, netproxy, jail and cmd/sandbox-init. It imports only
// the standard library's os and golang.org/x/sys/unix, so that sandbox-init
// stays small.
//
// It must never trust the peer: a frame's size and its number of descriptors
// are bounded before anything is allocated, and descriptors that no frame
// announced are closed.
package ipc
