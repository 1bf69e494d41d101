package wasmvm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	sectionData      = 11
	sectionDataCount = 12
	wasmHeader       = 8
)

// maxInitial bounds the memory that data segments make.
const maxInitial = 256 << 20

var errModule = errors.New("the binary is not a WebAssembly module")

// A moduleReader takes numbers off the front of b.
type moduleReader struct {
	b   []byte
	err error
}

func (r *moduleReader) number() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.err, r.b = errModule, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *moduleReader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.err, r.b = errModule, nil
		return nil
	}
	t := r.b[:n]
	r.b = r.b[n:]
	return t
}

// SplitData takes the data section out of a module and gives the memory that it
// makes. An instance over an image must not write it again, and 24 thousand
// segments cost a new instance a millisecond even when they are empty.
func SplitData(wasm []byte) (rest, memory []byte, err error) {
	r := &moduleReader{b: wasm}
	rest = append(rest, r.take(wasmHeader)...)
	for len(r.b) > 0 {
		whole := r.b
		id := r.take(1)[0]
		content := r.take(r.number())
		if r.err != nil {
			return nil, nil, r.err
		}
		switch id {
		case sectionData:
			if memory, err = initialMemory(content); err != nil {
				return nil, nil, err
			}
		case sectionDataCount: // counts what is not there any more
		default:
			rest = append(rest, whole[:len(whole)-len(r.b)]...)
		}
	}
	return rest, memory, r.err
}

// initialMemory applies active data segments at constant addresses; the module
// has no others.
func initialMemory(section []byte) ([]byte, error) {
	const i32Const, end = 0x41, 0x0b
	var memory []byte
	r := &moduleReader{b: section}
	for n := r.number(); n > 0 && r.err == nil; n-- {
		if flags, op := r.number(), r.take(1); flags != 0 || len(op) == 0 || op[0] != i32Const {
			return nil, fmt.Errorf("%w: a data segment is not at a constant address", errModule)
		}
		at := uint64(uint32(r.signed()))
		if e := r.take(1); len(e) == 0 || e[0] != end {
			return nil, fmt.Errorf("%w: a data segment is not at a constant address", errModule)
		}
		content := r.take(r.number())
		to := at + uint64(len(content))
		if to > maxInitial {
			return nil, fmt.Errorf("%w: a data segment ends at %d", errModule, to)
		}
		if to > uint64(len(memory)) {
			memory = append(memory, make([]byte, to-uint64(len(memory)))...)
		}
		copy(memory[at:], content)
	}
	return memory, r.err
}

// signed reads a signed LEB128 number.
func (r *moduleReader) signed() int64 {
	var v int64
	for shift := 0; shift < 64; shift += 7 {
		b := r.take(1)
		if len(b) == 0 {
			return 0
		}
		v |= int64(b[0]&0x7f) << shift
		if b[0]&0x80 == 0 {
			if b[0]&0x40 != 0 && shift+7 < 64 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	r.err = errModule
	return 0
}
