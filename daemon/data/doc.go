// Package data holds the tenants' own data: for each tenant one SQLite database
// that its isolates may query and the service may write, and one key-value
// store.
//
// Who calls it: daemon only. It imports the standard library, policy and
// ncruces/go-sqlite3 (SQLite translated to Go: no cgo, and memory-safe).
//
// It must never let one tenant's SQL reach another's file or any other file,
// write through a query, or use time or memory without a bound. SQL text of a
// query is hostile.
package data
