// Package seccomp turns a written-out allow-list of system calls into a seccomp
// program, with libseccomp, and checks the result before it hands it out.
//
// What a program answers:
//
//   - a system call that is not listed, or that libseccomp does not know: ENOSYS,
//     so that C libraries fall back as on an old kernel;
//   - one that is listed as denied, or whose arguments no rule allows: EPERM, or
//     the error number given;
//   - one of another architecture, or of the x32 ABI: the process is killed.
//
// Who calls it: internal/confine for the daemon's own helper processes, jail for
// what runs in jails. It imports internal/seccomp/bpf, libseccomp (cgo) and
// golang.org/x/sys/unix. A process without cgo loads compiled programs with
// internal/seccomp/bpf.
//
// It must never drop a rule silently: a name that libseccomp does not know, and
// rules that contradict each other, are errors.
package seccomp
