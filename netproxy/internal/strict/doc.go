// Package strict reads what a sandbox sends: HTTP/1.1 request heads and bodies,
// and TLS ClientHellos. net/http accepts messages that two programs can read in
// two ways (Content-Length with Transfer-Encoding, bare LF, folded lines, two
// Hosts); here each of those is an error.
//
// Who calls it: netproxy/internal/proxy. It imports the standard library only.
//
// It must never repair a message: a message is canonical, or it is refused.
package strict
