// Package client calls a sandboxd over its Unix socket.
//
// Who uses it: cmd/sandboxctl, the demo, the suites and services written in Go.
// It imports daemon/api, the WebSocket library and the standard library only.
//
// Errors of the daemon are *api.Error; a daemon that cannot be reached is an
// *UnreachableError. Text that the answers carry out of a sandbox is hostile:
// it must never be printed to a terminal or run as it is.
package client
