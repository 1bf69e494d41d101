// Package netproxy is the only way out of a sandbox and the only way in to a
// published port. It makes the egress network namespace with one veth for each
// jail, starts the proxy process and tells it what each tenant may reach.
//
// Who calls it: daemon (Start and the methods of Proxy) and cmd/sandboxd
// (Main, the proxy process itself). It may import policy, secrets and internal.
//
// The daemon's side runs with privilege and never parses what a sandbox sent.
// The proxy process parses it and has no privilege: an own uid, no capability,
// Landlock, seccomp. The decision procedure is in netproxy/internal/proxy.
//
// It must never forward a packet, never tell a tenant by anything but the
// device or socket that a connection came in by, and never let a secret's value
// into the daemon.
package netproxy
