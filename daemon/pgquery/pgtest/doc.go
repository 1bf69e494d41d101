// Package pgtest starts a real PostgreSQL for tests, in a temporary folder, as
// the user postgres of Debian's package, on a Unix socket only. Tests of daemon
// and its packages use it. It must never touch a server that was there before.
package pgtest
