// Command bench measures what sandboxd costs, each figure beside its floor in
// the same run: a fresh isolate's call against an HTTP request that does
// nothing and against one that instantiates QuickJS anew, a fresh jail's first
// command against a plain start of the same program, a call beside another
// tenant's loops against one alone. Rounds of a group alternate, so that a busy
// machine slows all of them. Besides: calls per second by parallel clients,
// memory before and after many tenants' calls, the start with and without
// compiled interpreters, what metering costs. Absolute figures are this
// machine's; the ratios are what to compare.
//
//	bench [-bin build] [-n ROUNDS] [-json]
//
// `make bench` calls it. It needs root, a built sandboxd and Go, starts
// `sandboxd dev` and leaves nothing.
package main
