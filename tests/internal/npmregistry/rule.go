package npmregistry

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"slices"
	"strings"

	"sandboxd/netproxy"
)

// A Registry is where npm takes packages from.
type Registry struct {
	// URL is npm's own setting.
	URL *url.URL
	// Ranges are those of its addresses that are not public, /24 each; none for
	// an ordinary registry.
	Ranges []string
}

// Find asks npm and the host's name servers.
func Find(ctx context.Context) (*Registry, error) {
	out, err := exec.CommandContext(ctx, "npm", "config", "get", "registry").Output()
	if err != nil {
		return nil, fmt.Errorf("ask npm for its registry: %w", err)
	}
	r := &Registry{}
	if r.URL, err = url.Parse(strings.TrimSpace(string(out))); err != nil || r.URL.Hostname() == "" {
		return nil, fmt.Errorf("npm's registry %q is no URL", strings.TrimSpace(string(out)))
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", r.URL.Hostname())
	if err != nil {
		return nil, fmt.Errorf("look up npm's registry: %w", err)
	}
	for _, a := range addresses {
		if p, _ := a.Unmap().Prefix(24); !netproxy.Public(a.Unmap()) && !slices.Contains(r.Ranges, p.String()) {
			r.Ranges = append(r.Ranges, p.String())
		}
	}
	return r, nil
}

// Rule is the rule, an element of a profile's `egress` list in one line, with
// more keys if need be.
func (r *Registry) Rule(more ...string) string {
	keys := append([]string{"host: " + r.URL.Hostname()}, more...)
	if len(r.Ranges) > 0 {
		keys = append(keys, "addresses: ["+strings.Join(r.Ranges, ", ")+"]")
	}
	return "{" + strings.Join(keys, ", ") + "}"
}
