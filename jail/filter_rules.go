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
	rules = append(rules, socketOptions()...)
	rules = append(rules, ioctls()...)
	rules = append(rules, prctls()...)
	return rules
}

// watchedRules say what of watchedFallbacks is allowed.
func watchedRules() []seccomp.Rule {
	return []seccomp.Rule{
		// Processes and threads, no namespaces.
		{Name: "clone", Args: []seccomp.Arg{seccomp.Masked(0, namespaceFlags, 0)}},
		// Named pipes are files like others; device nodes are not.
		{Name: "mknod", Args: []seccomp.Arg{seccomp.Masked(1, unix.S_IFMT, unix.S_IFIFO)}},
		{Name: "mknodat", Args: []seccomp.Arg{seccomp.Masked(2, unix.S_IFMT, unix.S_IFIFO)}},
	}
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

// socketOptions lists what programs set. Left out, beside what needs
// capabilities: BPF programs on sockets, TCP_ULP (the kernel's own TLS), packet
// filters' tables, ESP in UDP, TCP_REPAIR: code of the kernel's that a jail has
// no use for.
func socketOptions() []seccomp.Rule {
	const solNetlink = 270
	var rules []seccomp.Rule
	for _, l := range []struct {
		level   uint32
		options []uint32
	}{
		{unix.SOL_SOCKET, []uint32{
			unix.SO_DEBUG, unix.SO_REUSEADDR, unix.SO_DONTROUTE, unix.SO_BROADCAST, unix.SO_SNDBUF, unix.SO_RCVBUF,
			unix.SO_KEEPALIVE, unix.SO_OOBINLINE, unix.SO_PRIORITY, unix.SO_LINGER, unix.SO_REUSEPORT,
			unix.SO_PASSCRED, unix.SO_RCVLOWAT, unix.SO_SNDLOWAT, unix.SO_RCVTIMEO, unix.SO_SNDTIMEO,
			unix.SO_RCVTIMEO_NEW, unix.SO_SNDTIMEO_NEW, unix.SO_TIMESTAMP, unix.SO_TIMESTAMPNS,
			unix.SO_TIMESTAMPING, unix.SO_RXQ_OVFL, unix.SO_PEEK_OFF, unix.SO_INCOMING_CPU,
		}},
		{unix.IPPROTO_TCP, []uint32{
			unix.TCP_NODELAY, unix.TCP_MAXSEG, unix.TCP_CORK, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT,
			unix.TCP_SYNCNT, unix.TCP_LINGER2, unix.TCP_DEFER_ACCEPT, unix.TCP_WINDOW_CLAMP, unix.TCP_QUICKACK,
			unix.TCP_CONGESTION, unix.TCP_USER_TIMEOUT, unix.TCP_FASTOPEN, unix.TCP_FASTOPEN_CONNECT,
			unix.TCP_NOTSENT_LOWAT,
		}},
		{unix.IPPROTO_UDP, []uint32{unix.UDP_CORK, unix.UDP_SEGMENT, unix.UDP_GRO}},
		{unix.IPPROTO_IP, []uint32{
			unix.IP_TOS, unix.IP_TTL, unix.IP_PKTINFO, unix.IP_MTU_DISCOVER, unix.IP_RECVERR, unix.IP_RECVTTL,
			unix.IP_RECVTOS, unix.IP_FREEBIND, unix.IP_BIND_ADDRESS_NO_PORT, unix.IP_MULTICAST_IF,
			unix.IP_MULTICAST_TTL, unix.IP_MULTICAST_LOOP, unix.IP_ADD_MEMBERSHIP, unix.IP_DROP_MEMBERSHIP,
			unix.IP_MULTICAST_ALL,
		}},
		{unix.IPPROTO_IPV6, []uint32{
			unix.IPV6_UNICAST_HOPS, unix.IPV6_MULTICAST_IF, unix.IPV6_MULTICAST_HOPS, unix.IPV6_MULTICAST_LOOP,
			unix.IPV6_JOIN_GROUP, unix.IPV6_LEAVE_GROUP, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR,
			unix.IPV6_V6ONLY, unix.IPV6_RECVPKTINFO, unix.IPV6_RECVHOPLIMIT, unix.IPV6_RECVTCLASS, unix.IPV6_TCLASS,
			unix.IPV6_ADDR_PREFERENCES,
		}},
		{solNetlink, []uint32{
			unix.NETLINK_ADD_MEMBERSHIP, unix.NETLINK_DROP_MEMBERSHIP, unix.NETLINK_PKTINFO, unix.NETLINK_EXT_ACK,
			unix.NETLINK_GET_STRICT_CHK,
		}},
	} {
		for _, option := range l.options {
			rules = append(rules, seccomp.Rule{Name: "setsockopt", Args: []seccomp.Arg{
				seccomp.Is(1, l.level), seccomp.Is(2, option),
			}})
		}
	}
	return rules
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
