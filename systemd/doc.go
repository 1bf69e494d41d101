// Package systemd is sandboxd's side of its contract with the service manager:
// the sockets it inherits by name, the messages of readiness, stopping and the
// watchdog, and the part of the cgroup tree that is delegated to it. The unit
// files that make the other side of that contract stand beside the code, so
// that a test holds both together.
//
// cmd/sandboxd and daemon call it; nothing else does. It may import
// coreos/go-systemd's activation and daemon packages and golang.org/x/sys, and
// no other package of this module.
//
// Started by hand, without a service manager, every call here does nothing and
// says so: no socket, no message, no cgroup. It must never treat a broken
// environment (a descriptor that is no listener, an unreadable cgroup) as that
// case.
package systemd
