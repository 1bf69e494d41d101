// Package bpf holds seccomp programs as data: their bytes on a wire, loading
// them into the running process, and an evaluator that says what a program
// answers to a system call.
//
// Who calls it: cmd/sandbox-init, which receives the bytes from the daemon and
// loads them; internal/seccomp, which compiles programs and checks them with
// the evaluator; tests. It imports golang.org/x/sys/unix and nothing else, and
// no cgo, so that sandbox-init stays small and static.
//
// It must never repair a program: what is malformed is refused.
package bpf
