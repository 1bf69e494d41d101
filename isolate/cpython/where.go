package cpython

import "slices"

// A Frame is where a function of the code stands.
type Frame struct {
	File, Function string
	Line, Column   int // from 1; 0 if unknown
}

// Offsets in CPython 3.12's structures with pointers of 32 bits.
const (
	frameObjectFrame = 12 // PyFrameObject.f_frame

	frameCode      = 0 // _PyInterpreterFrame
	framePrevious  = 4
	framePrevInstr = 28
	frameOwner     = 38
	frameSize      = 40
	ownedByCStack  = 3

	codeFirstLine = 44 // PyCodeObject
	codeFileName  = 80
	codeName      = 88 // the qualified one
	codeLineTable = 92
	codeAdaptive  = 124
	codeUnit      = 2

	sizedLength  = 8 // PyVarObject.ob_size, and PyUnicodeObject.length
	bytesContent = 16
	textState    = 16
	textASCII    = 20
	// Bits of the state: compact and ASCII.
	stateCompactASCII = 3 << 5
)

const (
	maxFrames    = 2000
	maxLineTable = 256 << 10
	maxFrameText = 1000
)

// findThread finds the place in the image that points to the frame under way:
// the interpreter's thread state has the address of a structure on the C stack
// that has the address of the frame. frame is the address of the running code's
// frame object. It is 0 if there is not exactly one such place: then Where knows
// nothing.
func findThread(memory []byte, frame uint32) (thread uint32) {
	v := view{memory}
	current := v.word(frame + frameObjectFrame)
	if current == 0 {
		return 0
	}
	var holders []uint32
	for at := uint32(0); int(at)+4 <= len(memory); at += 4 {
		if v.word(at) == current && at < cStackEnd {
			holders = append(holders, at)
		}
	}
	for at := uint32(cStackEnd); int(at)+4 <= len(memory); at += 4 {
		if slices.Contains(holders, v.word(at)) {
			if thread != 0 {
				return 0
			}
			thread = at
		}
	}
	return thread
}

// cStackEnd is where the module's own stack ends, which stands in front of all
// data.
const cStackEnd = 512 << 10

// A view reads a guest's memory, whatever stands there. What is outside reads
// as zero.
type view struct{ b []byte }

func (v view) slice(at, n uint32) []byte {
	if end := uint64(at) + uint64(n); at == 0 || end > uint64(len(v.b)) {
		return nil
	}
	return v.b[at : at+n]
}

func (v view) word(at uint32) uint32 {
	b := v.slice(at, 4)
	if b == nil {
		return 0
	}
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// text reads an ASCII string; others are not needed.
func (v view) text(at uint32) string {
	if v.word(at+textState)&stateCompactASCII != stateCompactASCII {
		return "?"
	}
	return string(v.slice(at+textASCII, min(v.word(at+sizedLength), maxFrameText)))
}

// Where tells what the code was at when the VM was ended, or is at in a hook:
// the innermost frames in files that own says yes to, at most most of them, the
// innermost one last, and how many there are before. It reads the guest's own
// structures, so it is as true as the guest is sound, but its work is bounded.
func (vm *VM) Where(own func(file string) bool, most int) (frames []Frame, before int) {
	all, ok := vm.mod.Memory().Read(0, vm.mod.Memory().Size())
	if !ok || vm.eng.state.Thread == 0 {
		return nil, 0
	}
	return view{all}.frames(vm.eng.state.Thread, own, most)
}

func (v view) frames(thread uint32, own func(file string) bool, most int) (frames []Frame, before int) {
	at := v.word(v.word(thread))
	for range maxFrames {
		f := v.slice(at, frameSize)
		if f == nil {
			break
		}
		code := v.word(at + frameCode)
		if file := v.text(v.word(code + codeFileName)); f[frameOwner] != ownedByCStack && own(file) {
			if len(frames) < most {
				here := Frame{File: file, Function: v.text(v.word(code + codeName))}
				here.Line, here.Column = v.position(code, v.word(at+framePrevInstr))
				frames = append(frames, here)
			} else {
				before++
			}
		}
		at = v.word(at + framePrevious)
	}
	slices.Reverse(frames)
	return frames, before
}

// position looks an instruction up in a code object's table of locations: runs
// of instructions with the line's difference to the one before.
func (v view) position(code, instr uint32) (line, column int) {
	table := v.word(code + codeLineTable)
	t := locations{b: v.slice(table+bytesContent, min(v.word(table+sizedLength), maxLineTable))}
	index := int(int32(instr-(code+codeAdaptive))) / codeUnit
	if instr < code+codeAdaptive {
		index = -1
	}
	line = int(int32(v.word(code + codeFirstLine)))
	if index < 0 {
		return line, 0 // it has not begun
	}
	for len(t.b) > 0 {
		n := t.next()
		line += t.line
		if index -= n; index < 0 {
			if t.none {
				return 0, 0
			}
			return line, t.column
		}
	}
	return 0, 0
}

// locations reads entries of such a table.
type locations struct {
	b            []byte
	line, column int // the difference; the column from 1, 0 for none
	none         bool
}

func (t *locations) byte() byte {
	if len(t.b) == 0 {
		return 0
	}
	c := t.b[0]
	t.b = t.b[1:]
	return c
}

func (t *locations) number() (n int) {
	for shift := 0; shift < 30; shift += 6 {
		c := t.byte()
		n |= int(c&0x3f) << shift
		if c&0x40 == 0 {
			break
		}
	}
	return n
}

func (t *locations) signed() int {
	n := t.number()
	if n&1 != 0 {
		return -(n >> 1)
	}
	return n >> 1
}

// next reads an entry and gives the number of instructions that it is for.
func (t *locations) next() int {
	const short, oneLine, noColumns, long, nothing = 10, 12, 13, 14, 15
	head := t.byte()
	t.line, t.column, t.none = 0, 0, false
	switch kind := int(head>>3) & 15; {
	case kind < short:
		t.column = kind<<3 | int(t.byte()>>4)&7
		t.column++
	case kind <= oneLine:
		t.line = kind - short
		t.column = int(t.byte()) + 1
		t.byte()
	case kind == noColumns:
		t.line = t.signed()
	case kind == long:
		t.line = t.signed()
		t.number()
		t.column = t.number()
		t.number()
	case kind == nothing:
		t.none = true
	}
	return int(head&7) + 1
}
