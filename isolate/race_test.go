//go:build race

package isolate

// The race detector keeps shadows of a worker's memory.
func init() { workerMemory, raceEnabled = 768<<20, true }
