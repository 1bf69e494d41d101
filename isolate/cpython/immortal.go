package cpython

import "encoding/binary"

// messageObjects begins the message with the addresses of all objects.
const messageObjects = 'O'

const (
	objectType = 4 // PyObject.ob_type; ob_refcnt is in front
	// immortal is the reference count of an object that is never freed, whose
	// count CPython 3.12 leaves alone.
	immortal = 1<<30 - 1
	// likely is less than any address in the heap and more than any count.
	likely = 1 << 20
)

// immortalize makes the objects of an image immortal: a call would write the
// page of each that it looks at, only to count. objects are their addresses;
// later is the memory when these were asked for, and what had come into being
// since the image is left out. It tells how many there are.
func immortalize(image, later, objects []byte) (n int) {
	for ; len(objects) >= 4; objects = objects[4:] {
		at := uint64(binary.LittleEndian.Uint32(objects))
		if at+8 > uint64(len(image)) || at+8 > uint64(len(later)) {
			continue
		}
		was, is := image[at:at+8], later[at:at+8]
		// In free memory stands a link to the next free block.
		count := binary.LittleEndian.Uint32(was)
		if count == 0 || count >= likely || string(was[objectType:]) != string(is[objectType:]) {
			continue
		}
		binary.LittleEndian.PutUint32(was, immortal)
		n++
	}
	return n
}
