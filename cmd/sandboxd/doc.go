// Command sandboxd is the daemon: `serve` under systemd, `dev` in the
// foreground from a temporary folder, and the hidden `role` in which the daemon
// starts itself again as isolate worker, egress proxy or kernel probe.
//
// It reads flags, chooses folders, sockets and the cgroup, and hands them to
// package daemon. It must never hold logic of the service itself.
package main
