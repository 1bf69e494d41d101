package sys

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// TestPretendOwners: owners do not change, and sandbox-init's limits neither.
func TestPretendOwners(t *testing.T) {
	var prog []bpf.RawInstruction
	for _, f := range PretendOwners() {
		prog = append(prog, bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K})
	}
	list, ok := bpf.Disassemble(prog)
	if !ok {
		t.Fatal("not a program")
	}
	vm, err := bpf.NewVM(list)
	if err != nil {
		t.Fatal(err)
	}
	const allow, done, refuse = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO, unix.SECCOMP_RET_ERRNO | int(unix.EPERM)
	for name, tc := range map[string]struct {
		arch, nr uint32
		args     [6]uint64
		want     int
	}{
		"chown":              {unix.AUDIT_ARCH_X86_64, unix.SYS_CHOWN, [6]uint64{}, done},
		"fchown":             {unix.AUDIT_ARCH_X86_64, unix.SYS_FCHOWN, [6]uint64{}, done},
		"lchown":             {unix.AUDIT_ARCH_X86_64, unix.SYS_LCHOWN, [6]uint64{}, done},
		"fchownat":           {unix.AUDIT_ARCH_X86_64, unix.SYS_FCHOWNAT, [6]uint64{}, done},
		"read":               {unix.AUDIT_ARCH_X86_64, unix.SYS_READ, [6]uint64{1, 2, 3}, allow},
		"another machine":    {unix.AUDIT_ARCH_I386, unix.SYS_CHOWN, [6]uint64{}, allow},
		"own limit":          {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [6]uint64{0, 7, 0x7f0000001000, 0}, allow},
		"look at another's":  {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [6]uint64{1, 7, 0, 0x1000}, allow},
		"another's limit":    {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [6]uint64{1, 7, 0x1000, 0}, refuse},
		"at a round address": {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [6]uint64{1, 7, 0x7f00000000, 0}, refuse},
		"at another one":     {unix.AUDIT_ARCH_X86_64, unix.SYS_PRLIMIT64, [6]uint64{1, 7, 1 << 32, 0}, refuse},
	} {
		// The machine's words are this processor's, the program's reader has the
		// network's order: each word is turned by itself.
		words := []uint32{tc.nr, tc.arch, 0, 0}
		for _, a := range tc.args {
			words = append(words, uint32(a), uint32(a>>32))
		}
		var data []byte
		for _, w := range words {
			data = binary.BigEndian.AppendUint32(data, w)
		}
		if got, err := vm.Run(data); err != nil || got != tc.want {
			t.Errorf("%s: %#x, %v; want %#x", name, got, err, tc.want)
		}
	}
}
