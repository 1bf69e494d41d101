package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sockets of a link, in the order in which the proxy gets them.
const (
	SocketProxy  = iota // TCP ProxyPort on the gateway
	SocketHTTP          // TCP 80 on any address
	SocketHTTPS         // TCP 443 on any address
	SocketDNS           // UDP 53 on any address
	SocketDNSTCP        // TCP 53 on any address
	Sockets
)

// A Link joins one jail to the egress namespace.
type Link struct {
	// NetNS is the jail's namespace. Close closes it.
	NetNS            *os.File
	Address, Gateway netip.Addr
	// Sockets are bound to the link's device in the egress namespace.
	Sockets [Sockets]*os.File

	network *Network
	index   uint32 // of the /31
	name    string
	ifindex int
	once    sync.Once

	mu       sync.Mutex
	services map[service]bool // guarded by mu
}

// Attach makes a network namespace with one device and the sockets that are
// all it can reach.
func (n *Network) Attach() (*Link, error) {
	l := &Link{network: n}
	if err := n.take(l); err != nil {
		return nil, err
	}
	defer n.building.Done()
	if err := l.build(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Link) build() error {
	n := l.network
	l.name = fmt.Sprintf("sbx%d", l.index)
	var inside *netlink.Handle
	ns, err := n.thread.inNewNamespace(n.ns, func(*os.File) error {
		for _, s := range [][2]string{
			{"ipv6/conf/all/disable_ipv6", "1"}, {"ipv6/conf/default/disable_ipv6", "1"},
			// No one in a jail has a right over this namespace, so a server on
			// a low port would otherwise be impossible.
			{"ipv4/ip_unprivileged_port_start", "0"},
		} {
			if err := ipv6Optional(s[0], sysctl(s[0], s[1])); err != nil {
				return err
			}
		}
		var err error
		if inside, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("egress: netlink: %w", err)
		}
		return nil
	})
	if inside != nil {
		defer inside.Close()
	}
	if err != nil {
		return err
	}
	l.NetNS = ns
	if err := l.outside(); err != nil {
		return err
	}
	if err := l.inside(inside); err != nil {
		return err
	}
	// The end that came up first sends nothing until the kernel's link watch
	// has run, and the first packet would be lost: a second for TCP, the whole
	// question for DNS. Asking for the link's state runs the watch.
	if _, err := n.handle.LinkByIndex(l.ifindex); err != nil {
		return fmt.Errorf("egress: device: %w", err)
	}
	return n.thread.do(l.listen)
}

// outside makes the veth pair, both ends born where they belong: moving one
// later takes 50 times as long.
func (l *Link) outside() error {
	n := l.network
	veth := &netlink.Veth{
		// One queue each: to take away those of a default for each processor, the
		// kernel waits for all of them.
		LinkAttrs:        netlink.LinkAttrs{Name: l.name, HardwareAddr: l.mac(0), TxQLen: -1, NumTxQueues: 1, NumRxQueues: 1},
		PeerNumTxQueues:  1,
		PeerNumRxQueues:  1,
		PeerName:         "eth0",
		PeerHardwareAddr: l.mac(1),
		PeerNamespace:    netlink.NsFd(int(l.NetNS.Fd())),
	}
	if err := n.handle.LinkAdd(veth); err != nil {
		return fmt.Errorf("egress: veth: %w", err)
	}
	l.ifindex = veth.Attrs().Index
	// The filter knows the device before the device is up.
	if err := n.thread.do(func() error { return n.filter.allow(l.ifindex, l.Address, l.Gateway) }); err != nil {
		return err
	}
	return configure(n.handle, veth, l.Gateway, l.Address, l.mac(1))
}

func (l *Link) inside(h *netlink.Handle) error {
	if _, err := upLoopback(h); err != nil {
		return err
	}
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("egress: jail's device: %w", err)
	}
	if err := configure(h, eth0, l.Address, l.Gateway, l.mac(0)); err != nil {
		return err
	}
	err = h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: l.Gateway.AsSlice()})
	if err != nil {
		return fmt.Errorf("egress: jail's route: %w", err)
	}
	return nil
}

// configure gives one end its address, its only neighbour (so that no ARP
// answer is ever believed) and brings it up.
func configure(h *netlink.Handle, link netlink.Link, own, peer netip.Addr, mac net.HardwareAddr) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(31, 32)}}
	if err := h.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("egress: address: %w", err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("egress: device up: %w", err)
	}
	err := h.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: peer.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("egress: neighbour: %w", err)
	}
	return nil
}

func (l *Link) mac(end byte) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x5b, end, byte(l.index >> 16), byte(l.index >> 8), byte(l.index)}
}

// listen opens the link's sockets; it runs in the egress namespace.
func (l *Link) listen() error {
	var any4 [4]byte
	for i, s := range [Sockets]struct {
		kind, port int
		addr       [4]byte
	}{
		SocketProxy:  {unix.SOCK_STREAM, ProxyPort, l.Gateway.As4()},
		SocketHTTP:   {unix.SOCK_STREAM, 80, any4},
		SocketHTTPS:  {unix.SOCK_STREAM, 443, any4},
		SocketDNS:    {unix.SOCK_DGRAM, 53, any4},
		SocketDNSTCP: {unix.SOCK_STREAM, 53, any4},
	} {
		f, err := l.socket(s.kind, s.addr, s.port)
		if err != nil {
			return fmt.Errorf("egress: listener on port %d: %w", s.port, err)
		}
		l.Sockets[i] = f
	}
	return nil
}

func (l *Link) socket(kind int, addr [4]byte, port int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "egress-"+l.name)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		// A service on port 80 or 443 listens beside the one for any address.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		// The device, not an address, says whose connection this is.
		unix.BindToDevice(fd, l.name),
		// A service's address is no device's.
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1),
	)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: addr})
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, 512)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// closeSockets closes the daemon's own; the proxy has copies.
func (l *Link) closeSockets() {
	for _, f := range l.Sockets {
		if f != nil {
			f.Close()
		}
	}
}

// Close cuts the link off at once and leaves the device's deletion to the
// reaper.
func (l *Link) Close() {
	l.once.Do(func() {
		l.closeSockets()
		if l.NetNS != nil {
			l.NetNS.Close()
		}
		l.network.reap <- l
	})
}
