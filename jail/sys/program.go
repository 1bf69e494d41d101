package sys

import (
	"slices"

	"golang.org/x/sys/unix"
)

// The helpers below append one piece of a child's work each. The caller decides
// the order: what needs a capability comes before it is dropped.

// Descriptors makes src[i] the child's descriptor i, gives the child nothing
// else, and closes all others at once. Sources may overlap the targets.
func (p *Program) Descriptors(src ...int) {
	top := len(src)
	for _, fd := range src {
		top = max(top, fd+1)
	}
	for i, fd := range src {
		p.Call("descriptors", unix.SYS_DUP3, uintptr(fd), uintptr(top+i), unix.O_CLOEXEC)
	}
	for i := range src {
		p.Call("descriptors", unix.SYS_DUP3, uintptr(top+i), uintptr(i), 0)
	}
	p.Call("descriptors", unix.SYS_CLOSE_RANGE, uintptr(len(src)), ^uintptr(0)>>32, 0)
}

// CloseOnExec marks descriptor fd and all above it.
func (p *Program) CloseOnExec(fd int) {
	p.Call("descriptors", unix.SYS_CLOSE_RANGE, uintptr(fd), ^uintptr(0)>>32, unix.CLOSE_RANGE_CLOEXEC)
}

// Rlimit sets both limits of a resource.
func (p *Program) Rlimit(resource int, value uint64) {
	lim := &unix.Rlimit{Cur: value, Max: value}
	p.Call("rlimit", unix.SYS_PRLIMIT64, 0, uintptr(resource), pointer(p, lim), 0)
}

// IDs drops the supplementary groups and sets all user and group ids.
func (p *Program) IDs(uid, gid int) {
	p.Call("setgroups", unix.SYS_SETGROUPS, 0, 0)
	p.Call("setgid", unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid))
	p.Call("setuid", unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
}

// capset sets this thread's permitted and effective, and the inheritable set.
func (p *Program) capset(step string, permitted, inheritable uint64) {
	hdr, data := capArgs(permitted, inheritable)
	p.Call(step, unix.SYS_CAPSET, pointer(p, hdr), pointer(p, data))
}

// CapNone empties all capability sets but the bounding set, which the parent
// emptied before.
func (p *Program) CapNone() {
	p.Call("capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	p.capset("capabilities", 0, 0)
}

// Securebits are what init and its children have, locked: uid 0 means nothing
// to execve, and no capability can be made ambient again. NO_SETUID_FIXUP stays
// off on purpose: leaving uid 0 then drops everything by itself.
const Securebits = secbitNoRoot | secbitNoRootLocked |
	secbitNoSetuidFixupLocked | secbitKeepCapsLocked |
	secbitNoAmbientRaise | secbitNoAmbientRaiseLocked

const (
	secbitNoRoot               = 1 << 0
	secbitNoRootLocked         = 1 << 1
	secbitNoSetuidFixupLocked  = 1 << 3
	secbitKeepCapsLocked       = 1 << 5
	secbitNoAmbientRaise       = 1 << 6
	secbitNoAmbientRaiseLocked = 1 << 7
)

// CapCarry lets the capabilities of set survive execve (as ambient ones), and
// empties the bounding set so that nothing can add to them, up to the kernel's
// last capability. It locks the secure bits and sets no_new_privs.
func (p *Program) CapCarry(set uint64, last int) {
	p.capset("capabilities", CapAll(last), set)
	for c := range last + 1 {
		if set&(1<<c) != 0 {
			p.Call("ambient", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0)
		}
	}
	for c := range last + 1 {
		p.Call("bounding", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
	}
	p.Call("securebits", unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, Securebits, 0, 0, 0)
	p.capset("capabilities", set, set)
	p.Call("no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// Seccomp loads a filter.
func (p *Program) Seccomp(filter []unix.SockFilter) {
	fprog := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	p.keep = append(p.keep, filter)
	p.Call("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, pointer(p, fprog))
}

// Signals resets what execve does not: ignored signals and the mask. Until
// here every signal is blocked.
func (p *Program) Signals(resetIgnored bool) {
	if resetIgnored {
		def := p.Bytes(make([]byte, 64)) // struct sigaction: SIG_DFL
		for s := 1; s <= 64; s++ {
			p.Try("signals", unix.SYS_RT_SIGACTION, uintptr(s), def, 0, 8)
		}
	}
	p.Call("signals", unix.SYS_RT_SIGPROCMASK, 2, p.Bytes(make([]byte, 8)), 0, 8)
}

// Chdir changes to a folder by a path that may go through symlinks but not
// through /proc's magic links, which could lead out. next is the lowest free
// descriptor.
func (p *Program) Chdir(path string, next int) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	}
	p.CallMin("cwd", next, unix.SYS_OPENAT2, atFDCWD, p.String(path), pointer(p, how), unix.SizeofOpenHow)
	p.Call("cwd", unix.SYS_FCHDIR, uintptr(next))
	p.Call("cwd", unix.SYS_CLOSE, uintptr(next))
}

const atFDCWD = ^uintptr(99) // AT_FDCWD, -100

// Steps lists the names of p's steps, each once.
func (p *Program) Steps() []string {
	var out []string
	for _, s := range p.steps {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Break makes the last call of a step one that the kernel does not know. It is
// for tests: what fails here must not run on.
func (p *Program) Break(step string) {
	for i := range slices.Backward(p.steps) {
		if p.steps[i] == step {
			p.ops[i].nr = noCall
			return
		}
	}
}

const noCall = 100_000
