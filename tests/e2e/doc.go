// Package e2e tests the whole system from outside: a real daemon, called over
// its real sockets, with a world to reach. It needs root, the programs that
// `make build` makes, and what jails use of the host (sh, coreutils, python3,
// curl, git); it leaves nothing behind, which its last check holds.
//
// The same suite runs against `sandboxd dev` (make test-e2e) and, in the virtual
// machine of tests/vm, against the installed units under systemd. Each test
// takes tenants of its own.
package e2e
