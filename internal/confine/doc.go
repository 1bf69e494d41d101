// Package confine takes authority away from the daemon's own helper processes:
// the isolate workers and the egress proxy.
//
// The daemon starts such a process with Start, unprivileged from birth. The
// process calls Apply before it reads anything hostile: no_new_privs, Landlock
// and a seccomp filter for every thread, read back from the kernel afterwards.
// The two filters are written out here, system call by system call.
//
// Who calls it: isolate and netproxy. It imports internal/seccomp, go-landlock,
// libcap's psx and golang.org/x/sys/unix.
//
// It must never report success for less than was asked: a kernel that lacks a
// feature, a thread that was missed, or a privilege that is still there is an
// error, and the process must then end.
package confine
