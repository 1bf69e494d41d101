// Package pkgcache keeps what package registries answered, so that the next
// tenant's install needs no network. It is the daemon's side: package netproxy
// calls it for the proxy process, which has no file of its own and gets open
// descriptors.
//
// Content is kept once under its SHA-256, whatever address it came from, and is
// hashed again by whoever passes it on: a changed file is found before its last
// byte is out. What stands under an address comes from the proxy alone, which
// asked for it with nothing of a tenant's in the request.
//
// It must never keep an answer to a request with a credential, and must never
// grow beyond its bound.
package pkgcache
