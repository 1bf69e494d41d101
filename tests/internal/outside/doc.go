// Package outside makes the outside that sandboxes reach through the proxy: an
// HTTPS server in a network namespace of its own, linked to the host by a veth
// pair, with a certificate of an authority made for it. The demo and the
// whole-system suites put their own handlers in it.
//
// It needs root. It must never listen on an address of the host's own.
package outside
