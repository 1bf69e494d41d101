// Package egress makes the network that jails see: one network namespace for
// the proxy's listeners, and for each jail a namespace of its own joined to it
// by a veth pair. Nothing is forwarded, so a jail's only neighbour is the
// listeners that are bound to its own device.
//
// Who calls it: netproxy, in the daemon, with CAP_SYS_ADMIN and CAP_NET_ADMIN.
// It imports vishvananda/netlink, google/nftables and golang.org/x/sys/unix.
//
// It must never touch the host's own network namespace, never move a device
// between namespaces, and never let a device live on after Close.
package egress
