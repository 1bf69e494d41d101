package isolate

import (
	"bytes"
	"io"
	"math"
	"testing"

	"sandboxd/isolate/cpython"
	"sandboxd/isolate/guests"
)

// TestPythonImage: a boot gives the same image each time, so that a run can be
// had again after the one that was kept has gone.
func TestPythonImage(t *testing.T) {
	wasm, err := guests.Load(guestDir, pythonGuest)
	if err != nil {
		t.Fatal(err)
	}
	var images [][]byte
	for range 2 {
		cache, err := codeCache(testCache)
		if err != nil {
			t.Fatal(err)
		}
		// Without a folder nothing is kept of it.
		s, err := cpython.Boot(t.Context(), cpython.BootOptions{Wasm: wasm, Cache: cache, MaxMemory: MaxMemory})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(io.NewSectionReader(s.Image, 0, math.MaxInt64))
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, b)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if !bytes.Equal(images[0], images[1]) {
		n := 0
		for i := range images[0] {
			if i >= len(images[1]) || images[0][i] != images[1][i] {
				n++
			}
		}
		t.Errorf("images of %d and %d bytes differ in %d", len(images[0]), len(images[1]), n)
	}
}
