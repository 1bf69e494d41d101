// Package secrets holds credential values so that they cannot be printed,
// puts them into requests, and removes them from what comes back. It seals them
// for a store on the disk, and keeps that store.
//
// Who calls it: netproxy's proxy process, the only process that ever has a
// value or the store's key, and the daemon for names and what is sealed alone.
// It may import policy and AWS's own signer.
//
// It must never write a value to a log, an error, a metric or a listing, and
// never keep a value that it cannot redact again.
package secrets
