// Command bench measures what sandboxd costs, each figure beside its floor in
// the same run: a fresh isolate's call against an HTTP request that does
// nothing, and a fresh jail's first command against a plain start of the same
// program. Rounds of the two alternate, so that a busy machine slows both.
// Absolute figures are this machine's; the ratios are what to compare.
//
//	bench [-bin build] [-n ROUNDS] [-json]
//
// `make bench` calls it. It needs root and a built sandboxd, starts
// `sandboxd dev` and leaves nothing.
package main
