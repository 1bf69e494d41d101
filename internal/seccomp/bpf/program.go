package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// MaxLen is the kernel's limit of instructions in one program (BPF_MAXINSNS).
const MaxLen = 4096

// insnSize is the size of struct sock_filter.
const insnSize = 8

// ErrMalformed says that bytes are not a program.
var ErrMalformed = errors.New("bpf: malformed seccomp program")

// Marshal returns the program as the kernel lays it out in memory: struct
// sock_filter after struct sock_filter, in this machine's byte order. The bytes
// are meant for another process of this machine, not for storage.
func Marshal(prog []unix.SockFilter) []byte {
	b := make([]byte, 0, len(prog)*insnSize)
	for _, in := range prog {
		b = binary.NativeEndian.AppendUint16(b, in.Code)
		b = append(b, in.Jt, in.Jf)
		b = binary.NativeEndian.AppendUint32(b, in.K)
	}
	return b
}

// Unmarshal is the reverse of Marshal. It refuses an empty, cut-off or
// oversized program with ErrMalformed; whether the instructions make sense is
// for the kernel to say.
func Unmarshal(b []byte) ([]unix.SockFilter, error) {
	if len(b) == 0 || len(b)%insnSize != 0 || len(b)/insnSize > MaxLen {
		return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	prog := make([]unix.SockFilter, 0, len(b)/insnSize)
	for ; len(b) > 0; b = b[insnSize:] {
		prog = append(prog, unix.SockFilter{
			Code: binary.NativeEndian.Uint16(b),
			Jt:   b[2],
			Jf:   b[3],
			K:    binary.NativeEndian.Uint32(b[4:]),
		})
	}
	return prog, nil
}
