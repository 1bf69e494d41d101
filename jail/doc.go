// Package jail gives one tenant its own Linux: namespaces, an overlay root over
// the host's /usr or a template's layers, a cgroup, Landlock, seccomp and no
// capabilities; and runs commands in it.
//
// Who calls it: the daemon. It may import jail/sys, jail/rootfs, jail/wire,
// internal/cgroup, internal/ipc and internal/seccomp; it never imports the daemon
// or policy.
//
// A Manager spawns cmd/sandbox-init as PID 1 of each jail from a sealed memfd
// and talks to it over a socket pair. The daemon enters no jail: it asks
// sandbox-init to start commands and passes the descriptors. What sandbox-init
// and everything behind it says is hostile input: a wrong answer ends the jail.
//
// A few of a jail's system calls wait for the daemon's word: those that are
// refused and belong into a receipt, and listen, which goes on (notices.go). All
// others are settled by the filters alone.
//
// It must never run a tenant's program before the self-check of sandbox-init
// was compared with what was asked for, never resolve a tenant's path other
// than beneath the jail's root, and never kill by a pid number.
package jail
