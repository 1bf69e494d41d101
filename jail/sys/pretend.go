package sys

import "golang.org/x/sys/unix"

// seccomp's data: the call's number, the architecture, and the arguments' halves.
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

// PretendOwners is a filter for commands that are root of a jail without any
// capability: what changes a file's owner is answered as done and is not done.
// Package managers then find what they unpack to be root's, as all of the
// template is. And as sandbox-init is the same user, nobody's limits are changed
// but one's own: without descriptors it could not go on. It goes on top of a
// filter that decides about everything else, other architectures too.
func PretendOwners() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(answer uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: answer}
	}
	equal := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: yes, Jf: no}
	}
	return []unix.SockFilter{
		load(dataArch), equal(unix.AUDIT_ARCH_X86_64, 0, 12), // to allow
		load(dataNr),
		equal(unix.SYS_CHOWN, 11, 0), equal(unix.SYS_FCHOWN, 10, 0), equal(unix.SYS_LCHOWN, 9, 0), equal(unix.SYS_FCHOWNAT, 8, 0), // to done
		equal(unix.SYS_PRLIMIT64, 0, 6), // to allow
		load(dataArgs), equal(0, 4, 0),  // one's own
		load(dataArgs + 2*8), equal(0, 0, 4), // the new limit: to refuse
		load(dataArgs + 2*8 + 4), equal(0, 0, 2), // its other half
		ret(unix.SECCOMP_RET_ALLOW),
		ret(unix.SECCOMP_RET_ERRNO), // done
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)),
	}
}
