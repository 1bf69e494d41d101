// Package wire is the language between the daemon and sandbox-init: a few
// versioned messages, written field by field so that sandbox-init needs no
// reflection and the daemon can bound every field of what it reads.
//
// Who calls it: jail and cmd/sandbox-init. It imports only the standard
// library.
//
// It must never trust a length that it reads.
package wire
