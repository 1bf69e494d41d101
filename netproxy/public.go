package netproxy

import (
	"net/netip"

	"sandboxd/netproxy/internal/names"
)

// Public reports whether the proxy reaches ip without a rule that names its
// range: public unicast space only. Operators' tools use it to find out that a
// host (an internal mirror) needs addresses in its rule.
func Public(ip netip.Addr) bool { return names.Public(ip) }
