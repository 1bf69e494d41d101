// Package recording keeps what is needed to run code in an isolate once more to
// the same end: the request, what it was granted, its seed and clock, and every
// host call with its answer, in the order in which the code got the answers.
//
// A Recorder notes that while a run is under way, a Player answers from it in
// place of the world, an Outcome tells by hashes whether the end was the same,
// and a Store keeps recordings in a folder for each tenant, bounded in size,
// number and age. The daemon calls it.
//
// It may import isolate and daemon/api. It must never have an effect of a host
// call, keep a header that could be a credential, or take part of a run's id
// into a path.
package recording
