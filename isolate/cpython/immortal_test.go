package cpython

import (
	"encoding/binary"
	"testing"
)

func TestImmortalize(t *testing.T) {
	put := func(b []byte, at int, count, typ uint32) {
		binary.LittleEndian.PutUint32(b[at:], count)
		binary.LittleEndian.PutUint32(b[at+4:], typ)
	}
	image, later := make([]byte, 128), make([]byte, 128)
	for at, o := range map[int]struct{ was, is, wasType, isType uint32 }{
		0:  {3, 4, 77, 77},
		16: {0, 1, 77, 77},             // it was not there yet
		32: {1, 1, 70, 77},             // another one stood there
		48: {0x3b0000, 1, 77, 77},      // a link in free memory
		64: {immortal, immortal, 7, 7}, // it is
	} {
		put(image, at, o.was, o.wasType)
		put(later, at, o.is, o.isType)
	}
	var objects []byte
	for _, at := range []uint32{0, 16, 32, 48, 64, 124, 1 << 31} {
		objects = binary.LittleEndian.AppendUint32(objects, at)
	}
	if n := immortalize(image, later, append(objects, 1, 2)); n != 1 {
		t.Errorf("%d objects", n)
	}
	for at, want := range map[int]uint32{0: immortal, 16: 0, 32: 1, 48: 0x3b0000, 64: immortal} {
		if got := binary.LittleEndian.Uint32(image[at:]); got != want {
			t.Errorf("the count at %d is %d, not %d", at, got, want)
		}
	}
}

func FuzzImmortalize(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 9, 0, 0, 0}, []byte{0, 0, 0, 0}, []byte{4, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(_ *testing.T, image, later, objects []byte) { immortalize(image, later, objects) })
}
