package egress

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A filter is the namespace's packet filter: input and forward drop by policy.
// What is accepted stands in sets with an element for each veth, so that the
// cost for a packet does not grow with the number of jails:
//
//	gateways  device, jail address, gateway address → proxy, 80, 443, DNS
//	links     device, jail address → 80, 443, DNS at any address that is not
//	          another link's (captured by the listeners on that device)
//	services  device, jail address, address that stands for a host, port → that
//	          listener on the device
//
// What a known jail sends elsewhere is answered with a reset, so that tools
// fail at once; what does not come from its own device and address vanishes.
type filter struct {
	conn     *nftables.Conn
	table    *nftables.Table
	gateways *nftables.Set
	links    *nftables.Set
	services *nftables.Set
}

// Registers for concatenated keys are 4 bytes wide (NFT_REG32_00 and on).
const reg32 = 8

func newFilter(ns int, links netip.Prefix) (*filter, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(ns), nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("egress: nftables: %w", err)
	}
	f := &filter{conn: conn}
	f.table = conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "sandboxd"})
	drop := nftables.ChainPolicyDrop
	input := conn.AddChain(&nftables.Chain{
		Name: "input", Table: f.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	conn.AddChain(&nftables.Chain{
		Name: "forward", Table: f.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	f.gateways = &nftables.Set{Table: f.table, Name: "gateways", Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeIPAddr, nftables.TypeIPAddr)}
	f.links = &nftables.Set{Table: f.table, Name: "links", Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeIPAddr)}
	f.services = &nftables.Set{Table: f.table, Name: "services", Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeIPAddr, nftables.TypeIPAddr, nftables.TypeInetService)}
	for _, s := range []*nftables.Set{f.gateways, f.links, f.services} {
		if err := conn.AddSet(s, nil); err != nil {
			return nil, fmt.Errorf("egress: nftables set: %w", err)
		}
	}
	add := func(parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		conn.AddRule(&nftables.Rule{Table: f.table, Chain: input, Exprs: all})
	}
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	add(ipv4(), f.in(f.gateways), f.ports(unix.IPPROTO_TCP, ProxyPort, 80, 443, 53), accept)
	add(ipv4(), f.in(f.gateways), f.ports(unix.IPPROTO_UDP, 53), accept)
	add(ipv4(), notTo(links), f.in(f.links), f.ports(unix.IPPROTO_TCP, 80, 443, 53), accept)
	add(ipv4(), notTo(links), f.in(f.links), f.ports(unix.IPPROTO_UDP, 53), accept)
	add(ipv4(), notTo(links), proto(unix.IPPROTO_TCP), f.in(f.services), accept)
	add(ipv4(), f.in(f.links), proto(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	add(ipv4(), f.in(f.links), proto(unix.IPPROTO_UDP),
		[]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}})
	if err := conn.Flush(); err != nil {
		_ = conn.CloseLasting()
		return nil, fmt.Errorf("egress: nftables rules: %w", err)
	}
	return f, nil
}

// allow adds the elements of one veth; deny removes them.
func (f *filter) allow(ifindex int, jail, gateway netip.Addr) error {
	return f.elements(f.conn.SetAddElements, ifindex, jail, gateway)
}

func (f *filter) deny(ifindex int, jail, gateway netip.Addr) error {
	return f.elements(f.conn.SetDeleteElements, ifindex, jail, gateway)
}

func (f *filter) elements(do func(*nftables.Set, []nftables.SetElement) error, ifindex int, jail, gateway netip.Addr) error {
	link := append(binaryutil.NativeEndian.PutUint32(uint32(ifindex)), jail.AsSlice()...)
	both := append(append([]byte{}, link...), gateway.AsSlice()...)
	if err := do(f.links, []nftables.SetElement{{Key: link}}); err != nil {
		return fmt.Errorf("egress: nftables: %w", err)
	}
	if err := do(f.gateways, []nftables.SetElement{{Key: both}}); err != nil {
		return fmt.Errorf("egress: nftables: %w", err)
	}
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("egress: nftables: %w", err)
	}
	return nil
}

// allowService and denyService are for one more address and port.
func (f *filter) allowService(ifindex int, jail, addr netip.Addr, port uint16) error {
	return f.service(f.conn.SetAddElements, ifindex, jail, addr, port)
}

func (f *filter) denyService(ifindex int, jail, addr netip.Addr, port uint16) error {
	return f.service(f.conn.SetDeleteElements, ifindex, jail, addr, port)
}

func (f *filter) service(do func(*nftables.Set, []nftables.SetElement) error, ifindex int, jail, addr netip.Addr, port uint16) error {
	key := append(binaryutil.NativeEndian.PutUint32(uint32(ifindex)), jail.AsSlice()...)
	key = append(key, addr.AsSlice()...)
	key = append(key, byte(port>>8), byte(port), 0, 0) // each part is 4 bytes wide
	if err := do(f.services, []nftables.SetElement{{Key: key}}); err != nil {
		return fmt.Errorf("egress: nftables: %w", err)
	}
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("egress: nftables: %w", err)
	}
	return nil
}

func (f *filter) close() { _ = f.conn.CloseLasting() }

func ipv4() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
	}
}

func (f *filter) in(s *nftables.Set) []expr.Any {
	e := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIF, Register: reg32},
		&expr.Payload{DestRegister: reg32 + 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
	}
	if s == f.gateways || s == f.services {
		e = append(e, &expr.Payload{DestRegister: reg32 + 2, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4})
	}
	if s == f.services {
		e = append(e, &expr.Payload{DestRegister: reg32 + 3, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
	}
	return append(e, &expr.Lookup{SourceRegister: reg32, SetName: s.Name, SetID: s.ID})
}

func notTo(p netip.Prefix) []expr.Any {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func proto(p byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}},
	}
}

func (f *filter) ports(p byte, ports ...uint16) []expr.Any {
	set := &nftables.Set{Table: f.table, Anonymous: true, Constant: true, KeyType: nftables.TypeInetService}
	elements := make([]nftables.SetElement, len(ports))
	for i, port := range ports {
		elements[i].Key = binaryutil.BigEndian.PutUint16(port)
	}
	// An anonymous set cannot clash; what is wrong with it shows at Flush.
	_ = f.conn.AddSet(set, elements)
	return append(proto(p),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID})
}
