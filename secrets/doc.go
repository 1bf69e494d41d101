// Package secrets holds credential values so that they cannot be printed,
// puts them into requests, and removes them from what comes back.
//
// Who calls it: netproxy's proxy process, the only process that ever has a
// value, and the daemon for the names alone. It may import policy.
//
// It must never write a value to a log, an error, a metric or a listing, and
// never keep a value that it cannot redact again.
package secrets
