package proxy

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
)

// hostResolver asks the host's name servers. Which those are, the daemon says,
// now and whenever it changes: programs that write resolv.conf replace it, and
// a confined process cannot open the new file.
type hostResolver struct {
	std     *net.Resolver
	servers atomic.Pointer[[]netip.AddrPort]
	next    atomic.Uint32
}

func newResolver() *hostResolver {
	r := &hostResolver{}
	r.std = &net.Resolver{PreferGo: true, Dial: r.dial}
	return r
}

// dial takes the servers in turn; the address is what the library found in a
// file that may be old.
func (r *hostResolver) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if servers := r.servers.Load(); servers != nil && len(*servers) > 0 {
		i := int(r.next.Add(1)-1) % len(*servers)
		address = (*servers)[i].String()
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func (r *hostResolver) set(servers []netip.AddrPort) { r.servers.Store(&servers) }

// LookupNetIP looks a name up, in the host's hosts file first. The local names
// are this machine whatever a file lacks or a server says (RFC 6761).
func (r *hostResolver) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name != "localhost" && !strings.HasSuffix(name, ".localhost") {
		return r.std.LookupNetIP(ctx, network, host)
	}
	switch v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback(); network {
	case "ip4":
		return []netip.Addr{v4}, nil
	case "ip6":
		return []netip.Addr{v6}, nil
	default:
		return []netip.Addr{v4, v6}, nil
	}
}
