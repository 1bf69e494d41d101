// Package policy says what a tenant may do: which code it may run and where,
// its limits, its bindings, its way out, and which local callers may act for
// it. It reads the operator's YAML file, refuses a file that it does not
// understand completely, and answers questions about it.
//
// Who calls it: daemon, isolate, jail and netproxy. It imports policy/schema,
// the standard library, golang.org/x/net/idna and the YAML reader only, and
// nothing else of sandboxd.
//
// It must never grant by omission: an empty, missing or broken file grants
// nothing, a tenant that the file does not name may do nothing, and a request
// can lower what a profile grants but never raise it. It holds names of
// credentials, never their values.
package policy
