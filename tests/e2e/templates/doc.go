// Package templates tests imported root file systems on the whole system: a
// small Debian as a folder, a tar and an image of two layers, what works in its
// jails, and a root that a tenant may change with apt.
//
// It needs root and mmdebstrap; the Debian is built once, from where this
// machine takes its packages, and kept in build/cache. The daemon is one of the
// suite's own.
package templates
