package cpython

import (
	"encoding/binary"
	"testing"
	"time"
)

// FuzzWhere reads frames out of memory in which anything may stand.
func FuzzWhere(f *testing.F) {
	f.Add([]byte{}, uint32(4))
	loop := make([]byte, 4096)
	for i := range len(loop) / 4 {
		binary.LittleEndian.PutUint32(loop[4*i:], uint32(16+(i*37)%1000*4))
	}
	f.Add(loop, uint32(16))
	f.Fuzz(func(t *testing.T, memory []byte, thread uint32) {
		start := time.Now()
		frames, _ := view{memory}.frames(thread, func(string) bool { return true }, 8)
		if len(frames) > 8 || time.Since(start) > 5*time.Second {
			t.Errorf("%d frames in %v", len(frames), time.Since(start))
		}
		findThread(memory, thread)
	})
}
