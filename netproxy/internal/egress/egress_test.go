package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inside runs f on a thread that is in the namespace.
func inside(t testing.TB, ns *os.File, f func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// dial connects with plain system calls, so that the socket is born on this
// thread, and says whether anything answered.
func dial(addr netip.AddrPort, wait time.Duration) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(wait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return err
	}
	return unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()})
}

func network(t testing.TB) *Network {
	t.Helper()
	n, err := New(netip.Prefix{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

func attach(t testing.TB, n *Network) *Link {
	t.Helper()
	l, err := n.Attach()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestOnlyTheOwnListenersAnswer(t *testing.T) {
	n := network(t)
	a, b := attach(t, n), attach(t, n)
	at := func(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
	foreign := netip.MustParseAddr("198.18.0.7")
	listener, err := net.FileListener(b.Sockets[SocketProxy])
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const wait = 300 * time.Millisecond
	for _, tc := range []struct {
		what string
		to   netip.AddrPort
		ok   bool
	}{
		{"its proxy", at(a.Gateway, ProxyPort), true},
		{"http at a synthetic address", at(foreign, 80), true},
		{"https at a synthetic address", at(foreign, 443), true},
		{"https at a public address", at(netip.MustParseAddr("1.1.1.1"), 443), true},
		{"dns at a foreign resolver", at(netip.MustParseAddr("8.8.8.8"), 53), true},
		{"metadata", at(netip.MustParseAddr("169.254.169.254"), 80), true}, // its own proxy, which refuses
		{"ssh at a public address", at(netip.MustParseAddr("1.1.1.1"), 22), false},
		{"proxy port at a foreign address", at(foreign, ProxyPort), false},
		{"ssh at its gateway", at(a.Gateway, 22), false},
		{"the neighbour's proxy", at(b.Gateway, ProxyPort), false},
		{"the neighbour's gateway, https", at(b.Gateway, 443), false},
		{"the neighbour's gateway, dns", at(b.Gateway, 53), false},
		{"the neighbour's jail", at(b.Address, 443), false},
	} {
		err := inside(t, a.NetNS, func() error { return dial(tc.to, wait) })
		if (err == nil) != tc.ok {
			t.Errorf("%s (%v): %v", tc.what, tc.to, err)
		}
	}
	if err := inside(t, b.NetNS, func() error { return dial(at(b.Gateway, ProxyPort), wait) }); err != nil {
		t.Errorf("the neighbour's own proxy does not answer it: %v", err)
	}
}

func TestFirstPacketArrives(t *testing.T) {
	n := network(t)
	for range 20 {
		l := attach(t, n)
		start := time.Now()
		if err := inside(t, l.NetNS, func() error {
			return dial(netip.AddrPortFrom(l.Gateway, ProxyPort), 5*time.Second)
		}); err != nil {
			t.Fatal(err)
		}
		// A lost SYN is sent again after a second.
		if took := time.Since(start); took > 800*time.Millisecond {
			t.Errorf("the first connection took %v", took)
		}
		l.Close()
	}
}

// A jail that could send with another's address would be the other to a
// filter that looked at addresses only.
func TestSpoofedSourceVanishes(t *testing.T) {
	n := network(t)
	a, b := attach(t, n), attach(t, n)
	err := inside(t, a.NetNS, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		eth0, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := h.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: b.Address.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		tv := unix.NsecToTimeval(int64(300 * time.Millisecond))
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: b.Address.As4()}); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: ProxyPort, Addr: a.Gateway.As4()}); err == nil {
			return errors.New("a connection with the neighbour's address was accepted")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNoIPv6AndNoForwarding(t *testing.T) {
	n := network(t)
	a := attach(t, n)
	for name, ns := range map[string]*os.File{"egress": n.ns, "jail": a.NetNS} {
		err := inside(t, ns, func() error {
			for path, want := range map[string]string{
				"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1", "ipv4/ip_forward": "0",
				"ipv4/ip_unprivileged_port_start": "0",
			} {
				got, err := os.ReadFile("/proc/sys/net/" + path)
				if err != nil {
					return err
				}
				if strings.TrimSpace(string(got)) != want {
					return fmt.Errorf("%s is %s", path, got)
				}
			}
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return nil
			}
			defer unix.Close(fd)
			if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}); err == nil {
				return errors.New("::1 can be bound")
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The jail's namespace belongs to the daemon's user namespace, not to one that
// a jail could be root of.
func TestNamespaceOwner(t *testing.T) {
	a := attach(t, network(t))
	owner, err := unix.IoctlRetInt(int(a.NetNS.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(owner)
	var got, want unix.Stat_t
	if err := unix.Fstat(owner, &got); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat("/proc/self/ns/user", &want); err != nil {
		t.Fatal(err)
	}
	if got.Ino != want.Ino {
		t.Fatalf("owned by user namespace %d, want %d", got.Ino, want.Ino)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	before := netlinks(t)
	threads := threadCount(t)
	n, err := New(netip.Prefix{})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := n.Attach(); err != nil {
			t.Fatal(err)
		}
	}
	// What is still held tells whether the namespaces die.
	watch, err := syscall.Dup(int(n.ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(watch), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	links, err := h.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Type() == "veth" {
			t.Errorf("%s is left", l.Attrs().Name)
		}
	}
	syscall.Close(watch)
	if after := netlinks(t); after != before {
		t.Errorf("the host's own devices changed: %s, before %s", after, before)
	}
	if n.Links() != 0 {
		t.Errorf("%d links are still counted", n.Links())
	}
	if _, err := n.Attach(); err == nil {
		t.Error("a closed network took another link")
	}
	if after := threadCount(t); after > threads+4 {
		t.Errorf("%d threads before, %d after", threads, after)
	}
}

func netlinks(t *testing.T) string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return strings.Join(names, " ")
}

func threadCount(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "Threads:")
	line, _, _ := strings.Cut(rest, "\n")
	count, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return count
}

func TestRangeIsExhaustedAndReused(t *testing.T) {
	n, err := New(netip.MustParsePrefix("10.214.0.0/29"))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(context.Background())
	var links []*Link
	for range 4 {
		links = append(links, attach(t, n))
	}
	if _, err := n.Attach(); !errors.Is(err, ErrExhausted) {
		t.Fatalf("a fifth /31 of a /29: %v", err)
	}
	links[2].Close()
	deadline := time.Now().Add(10 * time.Second)
	for {
		l, err := n.Attach()
		if err == nil {
			l.Close()
			break
		}
		if !errors.Is(err, ErrExhausted) || time.Now().After(deadline) {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
}

func BenchmarkAttach(b *testing.B) {
	n := network(b)
	for b.Loop() {
		l, err := n.Attach()
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer() // the deletion, which the reaper does
		l.Close()
		for n.Links() > 0 {
			runtime.Gosched()
		}
		b.StartTimer()
	}
}

// TestManyLinksEnd: links that end together are all gone, and nothing else.
func TestManyLinksEnd(t *testing.T) {
	n := network(t)
	stays := attach(t, n)
	var links []*Link
	for range 12 {
		links = append(links, attach(t, n))
	}
	for _, l := range links {
		l.Close()
	}
	for deadline := time.Now().Add(20 * time.Second); n.Links() > 1; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d links are left", n.Links())
		}
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(n.ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	all, err := h.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if l.Type() == "veth" && l.Attrs().Index != stays.ifindex {
			t.Errorf("%s is left", l.Attrs().Name)
		}
	}
	if err := inside(t, stays.NetNS, func() error {
		return dial(netip.AddrPortFrom(stays.Gateway, ProxyPort), 5*time.Second)
	}); err != nil {
		t.Error(err)
	}
}
