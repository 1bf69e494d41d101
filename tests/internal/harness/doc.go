// Package harness sets up the whole system for the suites under tests: a world
// outside to reach (an HTTPS server in a network namespace of its own), a
// policy, credentials, and a real daemon on real sockets.
//
// It has two ways to run the daemon: `sandboxd dev` as a child process, and,
// inside the virtual machine of tests/vm, the installed units under systemd.
// The suites are the same for both. Only test programs import it; it talks to
// the daemon through its sockets alone, never through its packages, except for
// the types of daemon/api.
package harness
