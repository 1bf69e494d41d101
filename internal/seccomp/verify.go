package seccomp

import (
	"fmt"
	"runtime"

	scmp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp/bpf"
)

const (
	// sweep is one more than the largest number that verify looks at. The
	// kernel's own numbers end below 500.
	sweep = 1024
	// x32 marks a call of the x32 ABI on x86-64.
	x32 = 0x40000000
)

// Arch is the architecture that programs are made for, as a program sees it.
func Arch() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

// verify runs prog for every number, with the arguments that the rules name and
// with neighbours of them, and compares with the list itself. The program is
// what stands between a hostile process and the kernel; it is made once for
// each kind of process, and a mistake in the library, or in how we join its
// parts, must not become a hole.
func (p plan) verify(nums map[string]scmp.ScmpSyscall, prog []unix.SockFilter) error {
	byNumber := make(map[uint32]string, len(nums))
	for name, nr := range nums {
		byNumber[uint32(nr)] = name
	}
	for nr := range uint32(sweep) {
		v := &verdict{errno: unix.ENOSYS}
		name, listed := byNumber[nr]
		if listed {
			v = p[name]
		}
		for _, args := range v.samples() {
			if err := expect(prog, bpf.Data{Nr: nr, Arch: Arch(), Args: args}, v.answer(&args)); err != nil {
				return fmt.Errorf("system call %d %s: %w", nr, name, err)
			}
		}
		foreign := bpf.Data{Nr: nr, Arch: unix.AUDIT_ARCH_I386}
		if err := expect(prog, foreign, unix.SECCOMP_RET_KILL_PROCESS); err != nil {
			return fmt.Errorf("foreign system call %d: %w", nr, err)
		}
		if runtime.GOARCH == "amd64" {
			if err := expect(prog, bpf.Data{Nr: nr | x32, Arch: Arch()}, unix.SECCOMP_RET_KILL_PROCESS); err != nil {
				return fmt.Errorf("x32 system call %d: %w", nr, err)
			}
		}
	}
	return nil
}

func expect(prog []unix.SockFilter, d bpf.Data, want uint32) error {
	got, err := bpf.Eval(prog, d)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("arguments %#x: answers %#x, the list says %#x", d.Args, got, want)
	}
	return nil
}

// samples are arguments worth trying: none, all bits, what each rule names, and
// from there one bit changed at a time, in all 64 bits of all six arguments.
func (v *verdict) samples() [][6]uint64 {
	all := ^uint64(0)
	out := [][6]uint64{{}, {all, all, all, all, all, all}}
	rules := v.rules
	for _, d := range v.denials {
		rules = append(rules[:len(rules):len(rules)], d.Rule)
	}
	for _, r := range rules {
		var exact, noisy [6]uint64
		noisy = out[1]
		for _, a := range r.Args {
			exact[a.Index] = a.Value
			noisy[a.Index] = a.Value | ^a.Mask
		}
		out = append(out, exact, noisy)
		for i := range exact {
			for bit := range 64 {
				near := exact
				near[i] ^= 1 << bit
				out = append(out, near)
			}
		}
	}
	return out
}
