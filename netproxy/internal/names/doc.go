// Package names turns the host names and addresses that a sandbox sends into
// one canonical form each, and says which addresses may be dialled.
//
// Who calls it: netproxy and netproxy/internal/proxy. It imports the standard
// library and golang.org/x/net/idna.
//
// It must never accept a notation that another program could read differently:
// what is not canonical after one pass is refused.
package names
