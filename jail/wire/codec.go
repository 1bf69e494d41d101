package wire

import (
	"encoding/binary"
	"errors"
)

// ErrMalformed says that a message is not one of this version's.
var ErrMalformed = errors.New("wire: malformed message")

// maxList bounds the number of elements of any list; the frame's own limit
// bounds the bytes.
const maxList = 1 << 16

type writer struct{ b []byte }

func (w *writer) u64(v uint64)   { w.b = binary.AppendUvarint(w.b, v) }
func (w *writer) i64(v int64)    { w.b = binary.AppendVarint(w.b, v) }
func (w *writer) bytes(v []byte) { w.u64(uint64(len(v))); w.b = append(w.b, v...) }
func (w *writer) str(v string)   { w.u64(uint64(len(v))); w.b = append(w.b, v...) }
func (w *writer) flag(v bool) {
	if v {
		w.u64(1)
	} else {
		w.u64(0)
	}
}
func (w *writer) strs(v []string) {
	w.u64(uint64(len(v)))
	for _, s := range v {
		w.str(s)
	}
}

// reader remembers its first failure, so that callers check once.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) u64() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) i64() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) flag() bool { return r.u64() == 1 }

func (r *reader) bytes() []byte {
	n := r.u64()
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) str() string { return string(r.bytes()) }

func (r *reader) list() int {
	n := r.u64()
	// Every element takes a byte at least.
	if r.bad || n > maxList || n > uint64(len(r.b)) {
		r.bad = true
		return 0
	}
	return int(n)
}

func (r *reader) strs() []string {
	n := r.list()
	out := make([]string, 0, n)
	for range n {
		out = append(out, r.str())
	}
	return out
}

// done reports whether everything was read and well formed.
func (r *reader) done() error {
	if r.bad || len(r.b) > 0 {
		return ErrMalformed
	}
	return nil
}
