// Package sys holds the raw system calls of the jail: the child between clone3
// and execve, Landlock, capabilities and the mount API's few gaps in
// golang.org/x/sys/unix.
//
// Who calls it: jail and cmd/sandbox-init. It imports only golang.org/x/sys and
// the standard library, and it is the only package of the jail with unsafe or
// assembly. It holds no policy: callers say what is to be done.
//
// It must never run Go code in a child that shares the parent's memory.
package sys
