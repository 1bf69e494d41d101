// Package audit is the record of what sandboxd did: an append-only log of JSON
// lines, chained by SHA-256 so that a changed, missing, reordered or cut-off
// line is found, and a store of the code that ran, by content.
//
// Who calls it: daemon (Append, for every run, exec, decision and change) and
// sandboxctl by way of the daemon (Verify, Read). It imports the standard
// library and golang.org/x/sys/unix only.
//
// It must never lose a record silently: when a record cannot be written,
// Append fails and goes on failing until one can be, so that nothing new runs
// meanwhile. It must never hold a secret; callers give it names, not values.
package audit
