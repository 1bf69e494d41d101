// Package daemon is the service itself: the HTTP interface on the Unix sockets,
// who may call it for whom, runs and their records, the life of jails, and the
// line in the audit log that each of them leaves.
//
// Who calls it: cmd/sandboxd. It wires isolate, jail, netproxy, policy,
// daemon/audit, daemon/data and daemon/recording together, and nothing imports it.
//
// A request's way: socket → peer identity (SO_PEERCRED) → tenant and profile
// (policy) → checks → isolate or jail → result. Each step writes to one run
// record, which is audited at the end whatever happened.
//
// It must never run a tenant's code in its own process other than in an isolate
// pool, hold the value of a secret, start anything while the audit log cannot
// be written, or trust text that came out of a sandbox.
package daemon
