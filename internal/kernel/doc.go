// Package kernel finds out what the running kernel offers to a sandbox, by
// trying it, and says what follows from what is missing.
//
// Who calls it: daemon and cmd/sandboxctl for doctor and for the preflight. It
// imports golang.org/x/sys/unix, vishvananda/netlink and google/nftables.
// Probes that change state run in helper processes with namespaces of their
// own; whoever calls Probe must call Main for the helper's role.
//
// It must never change the host, and never report a feature that it has only
// read about.
package kernel
