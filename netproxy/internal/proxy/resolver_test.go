package proxy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
)

// TestLocalNames: they are known without a hosts file and without a server.
func TestLocalNames(t *testing.T) {
	r := newResolver()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no question may leave"))
	v4, v6 := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	for network, want := range map[string][]netip.Addr{"ip4": {v4}, "ip6": {v6}, "ip": {v4, v6}} {
		for _, name := range []string{"localhost", "LocalHost.", "a.b.localhost"} {
			if got, err := r.LookupNetIP(ctx, network, name); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s %s: %v, %v", network, name, got, err)
			}
		}
	}
	for _, name := range []string{"notlocalhost", "localhost.example.test"} {
		if got, err := r.LookupNetIP(ctx, "ip4", name); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
