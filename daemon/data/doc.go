// Package data holds the tenants' own data: for each tenant one SQLite database
// that its isolates may query and the service may write, one key-value store,
// and the functions that were deployed for it, each a file.
//
// Who calls it: daemon only. It imports the standard library, policy (for the
// form of a tenant's name) and ncruces/go-sqlite3, which is SQLite translated
// to Go: without cgo, and with every memory access checked, so that a fault in
// it ends one statement and not the daemon.
//
// It must never let one tenant's SQL reach another's file or any other file,
// write through a query, or use time or memory without a bound. SQL text of a
// query is hostile: it runs on a connection that is opened read-only, under an
// authorizer that allows what is listed, with a deadline and small limits.
//
// Values cross as JSON; see Rows and Params.
package data
