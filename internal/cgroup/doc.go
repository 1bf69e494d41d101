// Package cgroup waits for what the kernel tells about a cgroup v2 folder, by
// its event, never by looking again after a while.
//
// Who calls it: jail, and cmd/sandboxd for the folder that it makes for itself.
// It imports golang.org/x/sys/unix alone and must never change a group.
package cgroup
