// Package kernel finds out what the running kernel offers to a sandbox, by
// trying it, and says what follows from what is missing.
//
// Who calls it: daemon for doctor and for its preflight, cmd/sandboxctl to show
// it. It imports internal/seccomp/bpf, go-landlock, vishvananda/netlink,
// google/nftables and golang.org/x/sys/unix. Probes that change the process or
// need namespaces run in helper processes: the program that calls Probe must
// pass its own helper role on to Main.
//
// It must never change the host or load a module, and never report a feature
// that it has only read about.
package kernel
