package egress

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Of a link's shaping: a packet of the largest size always fits, and what is
// queued waits for rateLatency at most.
const (
	rateBurst    = 64 << 10
	rateLatency  = 20 // in a second: 50 ms
	burstPerRate = 100
)

// SetRate holds the link to so many bytes a second in each direction; 0 means no
// limit. It shapes: a connection becomes slower, and loses a packet only where
// its sender does not heed that. Nothing inside the jail can change it.
func (l *Link) SetRate(bytes int64) error {
	n := l.network
	var inside *netlink.Handle
	err := n.thread.inNamespace(n.ns, l.NetNS, func() (err error) {
		inside, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return fmt.Errorf("egress: rate: %w", err)
	}
	defer inside.Close()
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("egress: rate: jail's device: %w", err)
	}
	for _, end := range []struct {
		handle *netlink.Handle
		index  int
	}{{n.handle, l.ifindex}, {inside, eth0.Attrs().Index}} {
		if err := shape(end.handle, end.index, bytes); err != nil {
			return fmt.Errorf("egress: rate: %w", err)
		}
	}
	return nil
}

// shape bounds what a device sends.
func shape(h *netlink.Handle, index int, bytes int64) error {
	attrs := netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if bytes == 0 {
		err := h.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			return nil // it has none
		}
		return err
	}
	burst := max(bytes/burstPerRate, rateBurst)
	return h.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: attrs, Rate: uint64(bytes), Buffer: ticks(bytes, burst), Limit: uint32(min(burst+bytes/rateLatency, 1<<30)),
	})
}

// ticks is how long the burst takes at the rate, in the kernel's own unit.
func ticks(rate, burst int64) uint32 {
	return netlink.Xmittime(uint64(rate), uint32(min(burst, 1<<30)))
}
