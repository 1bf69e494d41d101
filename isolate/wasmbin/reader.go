package wasmbin

import (
	"fmt"
	"unicode/utf8"
)

// A reader walks a binary and remembers the first error. After an error it
// stands at the end and every read returns zero, so callers check err where
// they loop and where they finish.
type reader struct {
	b       []byte // ends where reading must end; offsets are the input's
	pos     int
	err     *Error
	section string
	fn      int
}

func (r *reader) fail(format string, args ...any) {
	r.failAt(r.pos, format, args...)
}

func (r *reader) failAt(pos int, format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Section: r.section, Func: r.fn, Offset: pos, Reason: fmt.Sprintf(format, args...)}
	}
	r.pos = len(r.b)
}

func (r *reader) left() int { return len(r.b) - r.pos }

// sub returns a reader of the next n bytes, which r skips.
func (r *reader) sub(n uint32, section string) reader {
	if uint64(n) > uint64(r.left()) {
		r.fail("%d bytes announced, %d left", n, r.left())
		return reader{b: r.b, pos: len(r.b), err: r.err, section: section, fn: r.fn}
	}
	s := reader{b: r.b[:r.pos+int(n)], pos: r.pos, section: section, fn: r.fn}
	r.pos += int(n)
	return s
}

func (r *reader) byte() byte {
	if r.pos >= len(r.b) {
		r.fail("ends too early")
		return 0
	}
	c := r.b[r.pos]
	r.pos++
	return c
}

func (r *reader) skip(n int) {
	if n > r.left() {
		r.fail("ends too early")
		return
	}
	r.pos += n
}

// u32 reads an unsigned LEB128 number of at most 32 bits.
func (r *reader) u32() uint32 {
	// One byte is the common case by far.
	if r.pos < len(r.b) && r.b[r.pos] < 0x80 {
		r.pos++
		return uint32(r.b[r.pos-1])
	}
	start := r.pos
	var v uint32
	for shift := 0; shift < 35; shift += 7 {
		c := r.byte()
		if r.err != nil {
			return 0
		}
		if shift == 28 && c > 0x0f {
			break
		}
		v |= uint32(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
	r.failAt(start, "number does not fit in 32 bits")
	return 0
}

// signed reads a signed LEB128 number of the given width (32, 33 or 64).
func (r *reader) signed(bits int) int64 {
	start := r.pos
	var v int64
	for shift := 0; shift < bits; shift += 7 {
		c := r.byte()
		if r.err != nil {
			return 0
		}
		v |= int64(c&0x7f) << shift
		if c >= 0x80 {
			continue
		}
		if used := shift + 7; used < 64 {
			v = v << (64 - used) >> (64 - used)
		}
		// In the last byte, the bits above the width must repeat the sign.
		if rest := bits - shift; rest < 7 {
			if top := int8(c<<1) >> rest; top != 0 && top != -1 {
				break
			}
		}
		return v
	}
	r.failAt(start, "number does not fit in %d bits", bits)
	return 0
}

// count reads the length of a vector whose elements take at least size bytes
// each, so that a length beyond the rest of the input is never allocated for.
// max bounds it further, where an element takes more memory than input.
func (r *reader) count(size, max int) int {
	start := r.pos
	n := r.u32()
	if r.err == nil && uint64(n) > uint64(max) {
		r.failAt(start, "vector of %d elements, more than %d", n, max)
		return 0
	}
	if r.err == nil && uint64(n)*uint64(size) > uint64(r.left()) {
		r.failAt(start, "vector of %d elements in %d bytes", n, r.left())
		return 0
	}
	return int(n)
}

func (r *reader) name() string {
	start := r.pos
	n := r.count(1, MaxSize)
	if r.err != nil {
		return ""
	}
	s := r.b[r.pos : r.pos+n]
	if !utf8.Valid(s) {
		r.failAt(start, "name is not UTF-8")
		return ""
	}
	r.pos += n
	return string(s)
}

// done fails unless everything was read.
func (r *reader) done() {
	if r.err == nil && r.left() != 0 {
		r.fail("%d bytes left over", r.left())
	}
}

func appendU32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendS64(b []byte, v int64) []byte {
	for v < -64 || v > 63 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v)&0x7f)
}

func appendName(b []byte, s string) []byte {
	return append(appendU32(b, uint32(len(s))), s...)
}

func appendVec(b, content []byte) []byte {
	return append(appendU32(b, uint32(len(content))), content...)
}
