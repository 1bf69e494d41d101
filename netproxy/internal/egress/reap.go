package egress

import (
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The kernel takes some 16 ms to delete a device, and holds up all who change
// devices meanwhile; it takes hardly longer for many at once. So the reaper
// deletes what has come in since its last turn together, by a device group.
const (
	doomed    = 0x5b78 // the group
	reapAtOne = 256    // at most
)

// reaper deletes devices off the path of requests.
func (n *Network) reaper() {
	defer n.done.Done()
	for l := range n.reap {
		batch := []*Link{l}
		for more := true; more && len(batch) < reapAtOne; {
			select {
			case l, ok := <-n.reap:
				if more = ok; ok {
					batch = append(batch, l)
				}
			default:
				more = false
			}
		}
		n.remove(batch)
		for _, l := range batch {
			n.give(l)
		}
	}
}

// remove takes links down. A device may have gone with its jail's namespace;
// that is as good.
func (n *Network) remove(batch []*Link) {
	made := 0
	for _, l := range batch {
		if l.ifindex == 0 {
			continue
		}
		made++
		l.endServices()
		_ = n.thread.do(func() error { return n.filter.deny(l.ifindex, l.Address, l.Gateway) })
	}
	// Some are left for one by one: what is in no group.
	rest := batch
	if made > 1 {
		rest = nil
		for _, l := range batch {
			if l.ifindex != 0 && n.deleter.LinkSetGroup(l.device(), doomed) != nil {
				rest = append(rest, l)
			}
		}
		if err := n.deleteGroup(doomed); err != nil {
			rest = batch
		}
	}
	for _, l := range rest {
		if l.ifindex != 0 {
			_ = n.deleter.LinkDel(l.device())
		}
	}
}

func (l *Link) device() netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.ifindex}}
}

// openGroup makes the socket for deleteGroup; it runs in the egress namespace.
func (n *Network) openGroup() error {
	s, err := nl.GetNetlinkSocketAt(netns.NsHandle(n.ns.Fd()), netns.None(), unix.NETLINK_ROUTE)
	if err == nil {
		n.group = &nl.SocketHandle{Socket: s}
	}
	return err
}

// deleteGroup deletes all devices of a group at once.
func (n *Network) deleteGroup(group uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: n.group}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
