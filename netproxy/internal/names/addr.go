package names

import (
	"net"
	"net/netip"
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// special4 is the IANA special-purpose registry for IPv4, multicast, and the
// one public address that a cloud answers metadata on. The library's
// predicates do not suffice: IsGlobalUnicast holds for 240.0.0.1, 198.18.0.1
// and 100.64.0.1.
var special4 = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
	"172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24",
	"192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
	"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
	"240.0.0.0/4", "168.63.129.16/32",
)

// global6 is the only part of IPv6 that is unicast and public; special6 is
// what of it is not: IETF protocol assignments (Teredo among them),
// documentation, 6to4, AS112.
var (
	global6  = netip.MustParsePrefix("2000::/3")
	special6 = prefixes("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)

// Public reports whether an address is ordinary public unicast space (step
// 11). IPv4 in IPv6 notation is judged as IPv4.
func Public(ip netip.Addr) bool {
	if !ip.IsValid() || ip.Zone() != "" {
		return false
	}
	ip = ip.Unmap()
	if ip.Is4() {
		return !contains(special4, ip)
	}
	return global6.Contains(ip) && !contains(special6, ip)
}

func contains(list []netip.Prefix, ip netip.Addr) bool {
	for _, p := range list {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// A Vetter decides which addresses of one host may be dialled.
type Vetter struct {
	// Ranges and Exact are what the operator's rule for this very host allows
	// besides public space.
	Ranges []netip.Prefix
	Exact  []netip.Addr
	// Own reports whether an address is this host's; nil: OwnAddress.
	Own func(netip.Addr) bool
}

// Allowed reports whether the address may be dialled. Addresses that are never
// a peer (unspecified, multicast, broadcast) are refused whatever a rule says,
// and so is one with a zone.
func (v *Vetter) Allowed(ip netip.Addr) bool {
	if !ip.IsValid() || ip.Zone() != "" {
		return false
	}
	ip = ip.Unmap()
	if ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return false
	}
	for _, e := range v.Exact {
		if e.Unmap() == ip {
			return true
		}
	}
	if contains(v.Ranges, ip) {
		return true
	}
	own := v.Own
	if own == nil {
		own = OwnAddress
	}
	return Public(ip) && !own(ip)
}

// AllowedAll reports whether every address may be dialled and there is at
// least one: one bad answer spoils the whole lookup.
func (v *Vetter) AllowedAll(ips []netip.Addr) bool {
	for _, ip := range ips {
		if !v.Allowed(ip) {
			return false
		}
	}
	return len(ips) > 0
}

// OwnAddress reports whether the address is one of this network namespace's
// own: the kernel would then send from that same address. Connecting a UDP
// socket asks for the route and sends nothing. An address without a route is
// not ours; dialling it fails by itself.
func OwnAddress(ip netip.Addr) bool {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 9)))
	if err != nil {
		return false
	}
	defer c.Close()
	local, ok := c.LocalAddr().(*net.UDPAddr)
	return ok && local.AddrPort().Addr().Unmap() == ip.Unmap()
}
