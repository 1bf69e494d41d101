package confine

import (
	"testing"

	"sandboxd/internal/seccomp"
)

// Compiling is part of a worker's start.
func BenchmarkCompileWorkerFilter(b *testing.B) {
	for b.Loop() {
		if _, err := seccomp.Compile(WorkerFilter()); err != nil {
			b.Fatal(err)
		}
	}
}
