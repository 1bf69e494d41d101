package netproxy

import (
	"bufio"
	"bytes"
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"sandboxd/netproxy/internal/control"
)

const (
	resolvConf = "/etc/resolv.conf"
	// resolverCheck is how often the host's name servers are looked at.
	resolverCheck = 5 * time.Second
	maxServers    = 3 // as the C library has it
)

// nameServers reads the host's name servers. No file or none in it means the
// local one, as everywhere.
func nameServers(path string) []netip.AddrPort {
	b, err := os.ReadFile(path)
	if err != nil {
		b = nil
	}
	var out []netip.AddrPort
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan() && len(out) < maxServers; {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			out = append(out, netip.AddrPortFrom(a, 53))
		}
	}
	if len(out) == 0 {
		out = append(out, netip.MustParseAddrPort("127.0.0.1:53"))
	}
	return out
}

// watchNameServers tells the proxy process when they change, until Close.
func (p *Proxy) watchNameServers() {
	known := nameServers(resolvConf)
	tick := time.NewTicker(resolverCheck)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		now := nameServers(resolvConf)
		if slices.Equal(now, known) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), resolverCheck)
		if err := p.tell(ctx, control.MethodServers, control.Servers{Servers: now}, func() {}); err == nil {
			known = now
		}
		cancel()
	}
}
