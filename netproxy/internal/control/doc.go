// Package control is the conversation between the daemon and its proxy process:
// requests with answers, both ways, over one framed socket.
//
// Who calls it: netproxy on the daemon's side, netproxy/internal/proxy on the
// other. It imports internal/ipc and policy.
//
// The daemon's side must never trust what the proxy sends further than it
// checks it: the proxy parses hostile input all day.
package control
