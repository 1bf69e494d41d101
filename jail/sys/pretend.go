package sys

import "golang.org/x/sys/unix"

// seccomp's data: the call's number and the architecture.
const (
	dataNr   = 0
	dataArch = 4
)

// PretendOwners is a filter for commands that are root of a jail without any
// capability: what changes a file's owner is answered as done and is not done.
// Package managers then find what they unpack to be root's, as all of the
// template is. It goes on top of a filter that decides about everything else,
// other architectures too.
func PretendOwners() []unix.SockFilter {
	calls := []uint32{unix.SYS_CHOWN, unix.SYS_FCHOWN, unix.SYS_LCHOWN, unix.SYS_FCHOWNAT}
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(answer uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: answer}
	}
	equal := func(value uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: uint8(yes), Jf: uint8(no)}
	}
	n := len(calls)
	prog := []unix.SockFilter{load(dataArch), equal(unix.AUDIT_ARCH_X86_64, 0, n+1), load(dataNr)}
	for i, nr := range calls {
		prog = append(prog, equal(nr, n-i, 0))
	}
	return append(prog, ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_ERRNO))
}
