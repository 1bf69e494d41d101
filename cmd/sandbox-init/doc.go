// Command sandbox-init is PID 1 of a jail. The daemon executes it from a sealed memfd,
// in new namespaces, with an empty environment, /dev/null as 0, 1 and 2, and
// its end of a socket pair as descriptor 3.
//
// Who calls it: package jail, nobody else. It imports jail/sys, jail/wire,
// internal/ipc and internal/seccomp/bpf, and is built without cgo: two of its
// steps act on all threads, which the Go runtime does only then.
//
// In this order it builds the root, leaves the old one, shuts the door to new
// namespaces, confines itself and says that it is ready; then it starts and
// reaps commands. A step that fails ends it, and with it the jail. It must
// never start a command that has a capability, a descriptor that was not meant
// for it, or no seccomp filter.
package main
