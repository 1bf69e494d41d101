package bpf

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnmarshalReversesMarshal(t *testing.T) {
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, Jf: 2, K: 0xc000003e},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	got, err := Unmarshal(Marshal(prog))
	if err != nil || !slices.Equal(got, prog) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	for _, n := range []int{0, 1, 7, 9, insnSize*MaxLen + insnSize} {
		if _, err := Unmarshal(make([]byte, n)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes: got %v", n, err)
		}
	}
	if err := Load(nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("loading nothing: got %v", err)
	}
}

func TestEvalReadsEachWord(t *testing.T) {
	d := Data{Nr: 1, Arch: 2, IP: 4<<32 | 3}
	for i := range d.Args {
		d.Args[i] = uint64(6+2*i)<<32 | uint64(5+2*i)
	}
	for off := uint32(0); off < 64; off += 4 {
		prog := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: off/4 + 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: 7},
			{Code: unix.BPF_RET | unix.BPF_K, K: 8},
		}
		if got, err := Eval(prog, d); got != 7 || err != nil {
			t.Errorf("word at %d: got %d, %v", off, got, err)
		}
	}
}

func TestEvalRefuses(t *testing.T) {
	ret := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	tests := map[string][]unix.SockFilter{
		"empty":            nil,
		"unaligned load":   {{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 2}, ret},
		"load beyond data": {{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 64}, ret},
		"jump beyond end":  {{Code: unix.BPF_JMP | unix.BPF_JA, K: 9}, ret},
		"unknown":          {{Code: unix.BPF_ST}, ret},
	}
	for name, prog := range tests {
		if _, err := Eval(prog, Data{}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Bytes from a broken peer may be refused, but must do no harm: no panic, no
// endless loop, and what is accepted says the same when written again.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte{})
	f.Add(Marshal([]unix.SockFilter{{Code: unix.BPF_JMP | unix.BPF_JA, K: 0xffffffff}}))
	f.Add(Marshal([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		prog, err := Unmarshal(b)
		if err != nil {
			return
		}
		if !bytes.Equal(Marshal(prog), b) {
			t.Fatal("written again, the program differs")
		}
		_, _ = Eval(prog, Data{Nr: 1, Arch: unix.AUDIT_ARCH_X86_64}) // an error is fine, a panic is not
	})
}
