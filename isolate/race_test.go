//go:build race

package isolate

import "time"

// The race detector keeps shadows of a worker's memory, and compiles ten times as
// long.
func init() {
	workerMemory = 768 << 20
	compileWasm, compileWall, wasmWall = 2*time.Minute, 10*time.Minute, 5*time.Minute
}
