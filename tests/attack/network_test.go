package attack

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"

	"sandboxd/jail"
	"sandboxd/netproxy"
)

// The proxy's process has a user of its own.
const proxyUID = uidBase - 512

// attach makes a jail with a way out.
func attach(t *testing.T, proxy *netproxy.Proxy, tenant string) (*jail.Jail, *netproxy.Link) {
	t.Helper()
	link, err := proxy.Attach(t.Context(), tenant)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.Close(); err != nil {
			t.Error(err)
		}
	})
	return newJailOn(t, tenant, link.NetNS), link
}

// A jail that has been granted nothing reaches the proxy, which refuses it, and
// nothing else: not the host, not a neighbour, not the neighbour's end of the
// wire (which ip_forward=0 alone does not stop), not the world, by no protocol.
func TestNoOtherWayOut(t *testing.T) {
	proxy, err := netproxy.Start(t.Context(), netproxy.Config{
		UID: proxyUID, GID: proxyUID, OnDecisions: func(context.Context, []netproxy.Decision) []error { return nil },
		DialJail: func(context.Context, string, uint16) (*os.File, error) { return nil, os.ErrNotExist },
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	a, linkA := attach(t, proxy, "network-a")
	_, linkB := attach(t, proxy, "network-b")
	if linkA.Address == linkB.Address || linkA.Gateway == linkB.Gateway {
		t.Fatalf("two tenants with %v and %v", linkA.Address, linkB.Address)
	}
	// A service of the host that must not be reached by any name of the host's.
	service, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	port := service.Addr().(*net.TCPAddr).Port

	where := map[string]string{
		"own proxy":              fmt.Sprintf("tcp/%s:3128", linkA.Gateway),
		"own resolver":           fmt.Sprintf("udp/%s:53", linkA.Gateway),
		"own gateway's ssh":      fmt.Sprintf("tcp/%s:22", linkA.Gateway),
		"own gateway's service":  fmt.Sprintf("tcp/%s:%d", linkA.Gateway, port),
		"neighbour":              fmt.Sprintf("tcp/%s:8000", linkB.Address),
		"neighbour by udp":       fmt.Sprintf("udp/%s:53", linkB.Address),
		"neighbour's proxy":      fmt.Sprintf("tcp/%s:3128", linkB.Gateway),
		"neighbour's resolver":   fmt.Sprintf("udp/%s:53", linkB.Gateway),
		"host's loopback":        fmt.Sprintf("tcp/127.0.0.1:%d", port),
		"host's loopback, other": fmt.Sprintf("tcp/127.1.2.3:%d", port),
		"any address":            fmt.Sprintf("tcp/0.0.0.0:%d", port),
		"the world":              "tcp/192.0.2.1:22",
		"the world by udp":       "udp/192.0.2.1:5353",
		"the world's resolver":   "udp/192.0.2.1:53",
		"metadata":               "tcp/169.254.169.254:8080",
		"link local 6":           "tcp6/[fe80::1%eth0]:3128",
		"multicast 6":            "udp6/[ff02::1%eth0]:53",
		"the world 6":            "tcp6/[2001:db8::1]:443",
		"spoofed neighbour":      fmt.Sprintf("udp-from-%s/%s:53", linkB.Address, linkA.Gateway),
	}
	args := []string{"network"}
	for name, target := range where {
		args = append(args, name+"="+target)
	}
	got := decode[map[string]string](t, a, args...)
	for name, want := range expectedNetwork {
		if got[name] != want {
			t.Errorf("%s (%s): got %q, want %q", name, where[name], got[name], want)
		}
	}
	if len(got) != len(expectedNetwork) {
		t.Errorf("%d ways are tried, %d expected", len(got), len(expectedNetwork))
	}
}

var expectedNetwork = map[string]string{
	"own proxy":    "connected",
	"own resolver": "answered", // with a refusal: nothing is granted
	// The egress namespace refuses what it does not serve, at once.
	"own gateway's ssh":     "ECONNREFUSED",
	"own gateway's service": "ECONNREFUSED",
	"neighbour's proxy":     "ECONNREFUSED",
	"neighbour's resolver":  "ECONNREFUSED",
	"the world":             "ECONNREFUSED",
	"the world by udp":      "ECONNREFUSED",
	"metadata":              "ECONNREFUSED",
	// Every question for a name is the proxy's to answer, whoever it is put to.
	"the world's resolver": "answered",
	// Nothing is forwarded.
	"neighbour":        "silent",
	"neighbour by udp": "silent",
	// The jail's own loopback, on which nothing listens.
	"host's loopback":        "ECONNREFUSED",
	"host's loopback, other": "ECONNREFUSED",
	"any address":            "ECONNREFUSED",
	// There is no IPv6.
	"link local 6": "EADDRNOTAVAIL",
	"multicast 6":  "EADDRNOTAVAIL",
	"the world 6":  "EADDRNOTAVAIL",
	// No route for a packet that bears another's address.
	"spoofed neighbour": "freebind ok, send ENETUNREACH",
}
