package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func init() { modes["sockets"] = everySocket }

// sockets: families, options, and the ways out of an empty network (B09, B12, C05).
func sockets() map[string]func() string {
	const high = 1 << 32
	out := map[string]func() string{
		"B09 packet, high bits": raw(unix.SYS_SOCKET, high|unix.AF_PACKET, unix.SOCK_RAW, 0),
		"B09 raw, high bits":    raw(unix.SYS_SOCKET, high|unix.AF_INET, high|unix.SOCK_RAW, high|unix.IPPROTO_ICMP),
		"B09 mptcp, high bits":  raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, high|262),
		"B09 socketpair inet":   raw(unix.SYS_SOCKETPAIR, unix.AF_INET, unix.SOCK_STREAM, 0, buf(make([]byte, 8))),
		"B09 socketpair tipc":   raw(unix.SYS_SOCKETPAIR, 30, unix.SOCK_STREAM, 0, buf(make([]byte, 8))),
		"B12 iptables replace":  option(unix.AF_INET, unix.IPPROTO_IP, 64, 96),
		"B12 ip6tables replace": option(unix.AF_INET6, unix.IPPROTO_IPV6, 64, 96),
		"B12 arptables replace": option(unix.AF_INET, unix.IPPROTO_IP, 96, 96),
		"B12 tcp ulp":           kernelTLS,
		"B12 attach bpf":        option(unix.AF_INET, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, 4),
		"B12 mark":              option(unix.AF_INET, unix.SOL_SOCKET, unix.SO_MARK, 4),
		"B12 transparent":       option(unix.AF_INET, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 4),
		"B12 debug":             option(unix.AF_INET, unix.SOL_SOCKET, unix.SO_DEBUG, 4),
		"B12 force buffer":      option(unix.AF_INET, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4),
		"B12 add an address":    ioctlLo(0x8916),
		"B12 link down":         ioctlLo(0x8914),
		"B12 netlink add route": netlink,
	}
	for name, addr := range map[string]unix.Sockaddr{
		"the world":   &unix.SockaddrInet4{Port: 443, Addr: [4]byte{1, 1, 1, 1}},
		"metadata":    &unix.SockaddrInet4{Port: 80, Addr: [4]byte{169, 254, 169, 254}},
		"a neighbour": &unix.SockaddrInet4{Port: 3128, Addr: [4]byte{10, 0, 0, 1}},
		"multicast 6": &unix.SockaddrInet6{Port: 53, Addr: [16]byte{0xff, 0x02, 15: 1}},
		"link local":  &unix.SockaddrInet6{Port: 53, Addr: [16]byte{0xfe, 0x80, 15: 1}, ZoneId: 1},
		"the world 6": &unix.SockaddrInet6{Port: 443, Addr: [16]byte{0x26, 0x06, 0x47, 15: 1}},
	} {
		family := unix.AF_INET
		if _, six := addr.(*unix.SockaddrInet6); six {
			family = unix.AF_INET6
		}
		out["C05 tcp to "+name] = connects(family, unix.SOCK_STREAM, addr)
		out["C05 udp to "+name] = connects(family, unix.SOCK_DGRAM, addr)
	}
	return out
}

// kernelTLS asks for the kernel's own TLS on a socket.
func kernelTLS() string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "socket: " + text(err)
	}
	defer unix.Close(fd)
	return text(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "tls"))
}

// option sets a socket option to 1, in size bytes.
func option(family, level, name, size int) func() string {
	return func() string {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return "socket: " + text(err)
		}
		defer unix.Close(fd)
		value := make([]byte, size)
		value[0] = 1
		return text(call(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), buf(value), uintptr(size)))
	}
}

func connects(family, kind int, addr unix.Sockaddr) func() string {
	return func() string {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return "socket: " + text(err)
		}
		defer unix.Close(fd)
		return text(unix.Connect(fd, addr))
	}
}

// ioctlLo asks for a change of the loopback interface.
func ioctlLo(request uintptr) func() string {
	return func() string {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return "socket: " + text(err)
		}
		defer unix.Close(fd)
		ifreq := make([]byte, 40)
		copy(ifreq, "lo")
		ifreq[16] = unix.AF_INET
		return text(call(unix.SYS_IOCTL, uintptr(fd), request, buf(ifreq)))
	}
}

// netlink asks the kernel to make a dummy interface.
func netlink() string {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return "socket: " + text(err)
	}
	defer unix.Close(fd)
	// nlmsghdr{len 32, RTM_NEWLINK, REQUEST|ACK|CREATE}, then an empty ifinfomsg.
	msg := make([]byte, 32)
	msg[0], msg[4], msg[6], msg[7] = 32, unix.RTM_NEWLINK, unix.NLM_F_REQUEST|unix.NLM_F_ACK, 0x4
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return "send: " + text(err)
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil || n < 20 {
		return fmt.Sprintf("receive: %d bytes, %v", n, err)
	}
	code := int32(uint32(reply[16]) | uint32(reply[17])<<8 | uint32(reply[18])<<16 | uint32(reply[19])<<24)
	if code == 0 {
		return "ok"
	}
	return unix.ErrnoName(unix.Errno(-code))
}

// everySocket tries every family with every type and the protocols that matter,
// and prints those that were not refused with EAFNOSUPPORT.
func everySocket([]string) error {
	got := map[string]string{}
	for family := range 47 {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_RDM, unix.SOCK_SEQPACKET, unix.SOCK_DCCP, unix.SOCK_PACKET} {
			for _, proto := range []int{0, 1, 2, 6, 15, 16, 17, 33, 58, 132, 136, 255, 262} {
				// Some modules' families would be loaded by the first socket;
				// the filter must answer before that.
				err := call(unix.SYS_SOCKET, uintptr(family), uintptr(kind|unix.SOCK_CLOEXEC), uintptr(proto))
				if t := text(err); t != "EAFNOSUPPORT" {
					got[strings.Join([]string{fmt.Sprint(family), fmt.Sprint(kind), fmt.Sprint(proto)}, " ")] = t
				}
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(got)
}
