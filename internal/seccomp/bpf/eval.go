package bpf

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Data is what a seccomp program sees of a system call (struct seccomp_data).
type Data struct {
	Nr   uint32
	Arch uint32
	IP   uint64
	Args [6]uint64
}

// Words of struct seccomp_data.
const (
	offNr   = 0
	offArch = 4
	offIP   = 8
	offArgs = 16
	dataLen = 64
)

// word returns the 32-bit word at byte offset off, as BPF_LD|BPF_W|BPF_ABS
// reads it: seccomp offers its data in native order, and the two architectures
// we build for are little-endian.
func (d *Data) word(off uint32) (uint32, bool) {
	if off%4 != 0 || off >= dataLen {
		return 0, false
	}
	pick := func(v uint64) uint32 { return uint32(v >> (off % 8 * 8)) }
	switch {
	case off == offNr:
		return d.Nr, true
	case off == offArch:
		return d.Arch, true
	case off < offArgs:
		return pick(d.IP), true
	default:
		return pick(d.Args[(off-offArgs)/8]), true
	}
}

// Eval runs prog on d and returns the program's answer (SECCOMP_RET_*, data in
// the low 16 bits). It knows the instructions that libseccomp emits and refuses
// every other one, so that a test cannot pass because it was not understood.
func Eval(prog []unix.SockFilter, d Data) (uint32, error) {
	var a uint32
	for pc := 0; pc < len(prog); {
		in := prog[pc]
		next := pc + 1
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			v, ok := d.word(in.K)
			if !ok {
				return 0, fmt.Errorf("%w: load of offset %d at %d", ErrMalformed, in.K, pc)
			}
			a = v
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
		case unix.BPF_JMP | unix.BPF_JA:
			next += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			next += branch(a == in.K, in)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			next += branch(a > in.K, in)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			next += branch(a >= in.K, in)
		case unix.BPF_RET | unix.BPF_K:
			return in.K, nil
		default:
			return 0, fmt.Errorf("%w: instruction %#x at %d", ErrMalformed, in.Code, pc)
		}
		pc = next
	}
	return 0, fmt.Errorf("%w: runs past its end", ErrMalformed)
}

func branch(taken bool, in unix.SockFilter) int {
	if taken {
		return int(in.Jt)
	}
	return int(in.Jf)
}
