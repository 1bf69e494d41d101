package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ProxyPort is where a jail finds the explicit proxy, on its gateway.
const ProxyPort = 3128

// DefaultLinks is where the /31 of each veth comes from. The addresses exist
// in the egress namespace and the jails alone; the host never sees them.
var DefaultLinks = netip.MustParsePrefix("10.213.0.0/16")

// ErrExhausted says that no address is left for another link.
var ErrExhausted = errors.New("egress: no link address is free")

// A Network is the egress namespace.
type Network struct {
	links  netip.Prefix
	thread *thread
	ns     *os.File
	handle *netlink.Handle
	// deleter is the reaper's own: a request of another on the same socket
	// would wait for a deletion.
	deleter *netlink.Handle
	group   *nl.SocketHandle // as deleter
	filter  *filter

	building sync.WaitGroup // links that are being made

	mu     sync.Mutex
	used   map[uint32]*Link
	next   uint32
	closed bool

	reap chan *Link
	done sync.WaitGroup // the reaper
}

// New makes the namespace. links is an IPv4 prefix; the zero value means
// DefaultLinks.
func New(links netip.Prefix) (*Network, error) {
	if !links.IsValid() {
		links = DefaultLinks
	}
	if !links.Addr().Is4() || links.Bits() > 30 || links.Bits() < 8 {
		return nil, fmt.Errorf("egress: link range %v: want an IPv4 prefix of 8 to 30 bits", links)
	}
	n := &Network{
		links: links.Masked(), used: map[uint32]*Link{}, reap: make(chan *Link, 1024),
	}
	t, ns, err := newThread()
	if err != nil {
		return nil, err
	}
	n.thread, n.ns = t, ns
	if err := n.thread.do(n.setUp); err != nil {
		n.thread.stop()
		n.release()
		return nil, err
	}
	n.done.Add(1)
	go n.reaper()
	return n, nil
}

// setUp runs once, on the namespace's thread.
func (n *Network) setUp() error {
	for _, s := range [][2]string{
		{"ipv6/conf/all/disable_ipv6", "1"}, {"ipv6/conf/default/disable_ipv6", "1"},
		{"ipv4/ip_forward", "0"},
		// Nothing but our listeners is here, so their ports need no capability.
		{"ipv4/ip_unprivileged_port_start", "0"},
		// Strict reverse path, and ARP only for the address of that device:
		// the weak host model otherwise answers for every gateway on every veth.
		{"ipv4/conf/all/rp_filter", "1"}, {"ipv4/conf/default/rp_filter", "1"},
		{"ipv4/conf/all/arp_ignore", "1"}, {"ipv4/conf/default/arp_ignore", "1"},
		{"ipv4/conf/all/arp_announce", "2"}, {"ipv4/conf/default/arp_announce", "2"},
		{"ipv4/conf/all/accept_redirects", "0"}, {"ipv4/conf/default/accept_redirects", "0"},
		{"ipv4/conf/all/send_redirects", "0"}, {"ipv4/conf/default/send_redirects", "0"},
		{"ipv4/conf/all/accept_source_route", "0"}, {"ipv4/conf/default/accept_source_route", "0"},
	} {
		if err := ipv6Optional(s[0], sysctl(s[0], s[1])); err != nil {
			return err
		}
	}
	var err error
	// The filter stands before there is any device it must hold back.
	if n.filter, err = newFilter(int(n.ns.Fd()), n.links); err != nil {
		return err
	}
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("egress: netlink: %w", err)
	}
	if n.deleter, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("egress: netlink: %w", err)
	}
	if err := n.openGroup(); err != nil {
		return fmt.Errorf("egress: netlink: %w", err)
	}
	lo, err := upLoopback(n.handle)
	if err != nil {
		return err
	}
	// Any address that is not a link's is local here: that is how a connection
	// to a synthetic or a foreign address ends at the listeners of its device,
	// without address translation.
	err = n.handle.RouteAdd(&netlink.Route{
		LinkIndex: lo, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
		Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: unix.RT_TABLE_MAIN,
	})
	if err != nil {
		return fmt.Errorf("egress: local route: %w", err)
	}
	return nil
}

// ipv6Optional forgives a kernel that has no IPv6 at all: it is as off as can be.
func ipv6Optional(path string, err error) error {
	if len(path) > 4 && path[:4] == "ipv6" && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func upLoopback(h *netlink.Handle) (int, error) {
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return 0, fmt.Errorf("egress: loopback: %w", err)
	}
	return lo.Attrs().Index, nil
}

// take reserves the next free /31, going round so that an address is not used
// again soon.
func (n *Network) take(l *Link) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	n.building.Add(1)
	total := uint32(1) << (31 - n.links.Bits())
	for range total {
		i := n.next % total
		n.next = (i + 1) % total
		if n.used[i] == nil {
			n.used[i] = l
			l.index = i
			base := n.links.Addr().As4()
			at := uint32(base[0])<<24 | uint32(base[1])<<16 | uint32(base[2])<<8 | uint32(base[3])
			at += 2 * i
			l.Gateway = netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)})
			l.Address = l.Gateway.Next()
			return nil
		}
	}
	n.building.Done()
	return ErrExhausted
}

func (n *Network) give(l *Link) {
	n.mu.Lock()
	delete(n.used, l.index)
	n.mu.Unlock()
}

// Links is the number of links that are not removed yet.
func (n *Network) Links() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.used)
}

// Close removes every device and the namespace. It returns when the devices
// are gone.
func (n *Network) Close(ctx context.Context) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	n.building.Wait() // a link that is being built is finished, then closed
	n.mu.Lock()
	var open []*Link
	for _, l := range n.used {
		open = append(open, l)
	}
	n.mu.Unlock()
	for _, l := range open {
		l.Close()
	}
	close(n.reap)
	finished := make(chan struct{})
	go func() {
		n.done.Wait()
		n.thread.stop()
		n.release()
		close(finished)
	}()
	select {
	case <-finished:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("egress: close: %w", ctx.Err())
	}
}

func (n *Network) release() {
	if n.filter != nil {
		n.filter.close()
	}
	for _, h := range []*netlink.Handle{n.handle, n.deleter} {
		if h != nil {
			h.Close()
		}
	}
	if n.group != nil {
		n.group.Close()
	}
	n.ns.Close()
}
