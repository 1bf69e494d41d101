// Package rootfs keeps root file systems for jails: named templates, imported
// from a tar, a folder or an image archive (an OCI layout, or what docker save
// writes), each a stack of layers.
//
// Who calls it: jail, which mounts the layers; the daemon, which imports, lists
// and removes; sandboxctl, which packs a folder with WriteTree. It imports
// nothing of ours.
//
// A layer is a folder, stored once by the digest of its uncompressed tar,
// however many templates have it, and never changed again. What the layers hide
// of each other is written as an overlay mounted with userxattr reads it.
//
// What is imported is hostile: nothing outside of the store's folder is read or
// written for it, no device, set-id bit or extended attribute comes in, every
// blob of an image must have its digest, and bytes, entries and depth have
// bounds. An import is all there or not at all, also after a kill.
package rootfs
