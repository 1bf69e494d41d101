package jail

import (
	"math/bits"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
)

// conditional lists the calls whose arguments decide. Every comparison is of 32
// bits, because the kernel looks at no more of an int.
func conditional() []seccomp.Rule {
	var rules []seccomp.Rule
	add := func(name string, args ...seccomp.Arg) {
		rules = append(rules, seccomp.Rule{Name: name, Args: args})
	}
	// Processes and threads, no namespaces.
	add("clone", seccomp.Masked(0, namespaceFlags, 0))
	// Execution domains that change nothing of the address space's protection.
	for _, persona := range []uint32{0, 0x0008, 0x20000, 0x20008, 0xffffffff} {
		add("personality", seccomp.Is(0, persona))
	}
	// Filters on top of ours are harmless; a listener would answer for us.
	add("seccomp", seccomp.Masked(0, ^uint32(0), unix.SECCOMP_SET_MODE_STRICT))
	for _, flags := range []uint32{0, unix.SECCOMP_FILTER_FLAG_TSYNC, unix.SECCOMP_FILTER_FLAG_LOG} {
		add("seccomp", seccomp.Is(0, unix.SECCOMP_SET_MODE_FILTER), seccomp.Is(1, flags))
	}
	add("seccomp", seccomp.Is(0, unix.SECCOMP_GET_ACTION_AVAIL))
	rules = append(rules, sockets()...)
	rules = append(rules, ioctls()...)
	rules = append(rules, prctls()...)
	return rules
}

// sockets allows local sockets, TCP and UDP, and the netlink family that asks
// about interfaces. Raw and packet sockets need capabilities; the less used
// protocols (MPTCP, SCTP …) go around what the host's rules look at.
func sockets() []seccomp.Rule {
	const typeMask = 0xf // SOCK_NONBLOCK and SOCK_CLOEXEC are above it
	var rules []seccomp.Rule
	for _, name := range []string{"socket", "socketpair"} {
		rules = append(rules, seccomp.Rule{Name: name, Args: []seccomp.Arg{seccomp.Is(0, unix.AF_UNIX)}})
	}
	for _, family := range []uint32{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range []struct{ kind, proto uint32 }{
			{unix.SOCK_STREAM, 0}, {unix.SOCK_STREAM, unix.IPPROTO_TCP},
			{unix.SOCK_DGRAM, 0}, {unix.SOCK_DGRAM, unix.IPPROTO_UDP},
			{unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, {unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6},
		} {
			rules = append(rules, seccomp.Rule{Name: "socket", Args: []seccomp.Arg{
				seccomp.Is(0, family), seccomp.Masked(1, typeMask, kind.kind), seccomp.Is(2, kind.proto),
			}})
		}
	}
	return append(rules, seccomp.Rule{Name: "socket", Args: []seccomp.Arg{
		seccomp.Is(0, unix.AF_NETLINK), seccomp.Is(2, unix.NETLINK_ROUTE),
	}})
}

// asm-generic/ioctls.h; x/sys/unix leaves these out.
const (
	fionbio  = 0x5421
	fionclex = 0x5450
	fioclex  = 0x5451
	fioasync = 0x5452
)

// ioctls refuses the terminal's dangerous requests: TIOCSTI types into it,
// TIOCLINUX and TIOCCONS reach the console, TIOCSETD loads line disciplines.
// Requests outside 0x54xx are the file's or socket's own affair; inside, those
// that programs use are listed.
func ioctls() []seccomp.Rule {
	rules := differs("ioctl", 1, 0xffffff00, 0x5400)
	for _, request := range []uint32{
		unix.TCGETS, unix.TCSETS, unix.TCSETSW, unix.TCSETSF, unix.TCGETA, unix.TCSETA, unix.TCSETAW, unix.TCSETAF,
		unix.TCSBRK, unix.TCSBRKP, unix.TCXONC, unix.TCFLSH, unix.TIOCEXCL, unix.TIOCNXCL, unix.TIOCSCTTY,
		unix.TIOCGPGRP, unix.TIOCSPGRP, unix.TIOCOUTQ, unix.TIOCGWINSZ, unix.TIOCSWINSZ, unix.TIOCNOTTY,
		unix.TIOCGSID, unix.TIOCINQ, unix.TIOCPKT, unix.TIOCGPTPEER, fionbio, fionclex, fioclex, fioasync,
	} {
		rules = append(rules, seccomp.Rule{Name: "ioctl", Args: []seccomp.Arg{seccomp.Is(1, request)}})
	}
	return rules
}

// prctls refuses what weakens a process or lets others into it: PR_SET_MM,
// PR_SET_PTRACER, PR_SET_SECCOMP (the call seccomp has rules) and whatever
// comes later. The rest concerns the caller alone.
func prctls() []seccomp.Rule {
	var rules []seccomp.Rule
	for _, option := range []uint32{
		unix.PR_SET_PDEATHSIG, unix.PR_GET_PDEATHSIG, unix.PR_GET_DUMPABLE, unix.PR_SET_DUMPABLE,
		unix.PR_GET_KEEPCAPS, unix.PR_SET_KEEPCAPS, unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_GET_SECCOMP,
		unix.PR_CAPBSET_READ, unix.PR_GET_TSC, unix.PR_GET_SECUREBITS, unix.PR_SET_TIMERSLACK,
		unix.PR_GET_TIMERSLACK, unix.PR_SET_CHILD_SUBREAPER, unix.PR_GET_CHILD_SUBREAPER,
		unix.PR_SET_NO_NEW_PRIVS, unix.PR_GET_NO_NEW_PRIVS, unix.PR_GET_TID_ADDRESS, unix.PR_SET_THP_DISABLE,
		unix.PR_GET_THP_DISABLE, unix.PR_CAP_AMBIENT, unix.PR_GET_SPECULATION_CTRL, unix.PR_SET_VMA,
		unix.PR_SET_MDWE, unix.PR_GET_MDWE,
	} {
		rules = append(rules, seccomp.Rule{Name: "prctl", Args: []seccomp.Arg{seccomp.Is(0, option)}})
	}
	return rules
}

// differs makes the rules that together match an argument which, masked, is not
// value: for each bit of mask one that matches where that bit differs.
func differs(name string, index uint, mask, value uint32) []seccomp.Rule {
	var rules []seccomp.Rule
	for m := mask; m != 0; m &= m - 1 {
		bit := uint32(1) << bits.TrailingZeros32(m)
		rules = append(rules, seccomp.Rule{Name: name, Args: []seccomp.Arg{
			seccomp.Masked(index, bit, ^value&bit),
		}})
	}
	return rules
}
