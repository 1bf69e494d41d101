package kernel

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
)

// tryNetwork runs in a network namespace of its own.
func tryNetwork() trials {
	return trials{"veth": tried(tryVeth()), "nftables": tried(tryNftables())}
}

func tryVeth() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "probe1"}); err != nil {
		return fmt.Errorf("make a veth pair: %w", err)
	}
	if _, err := netlink.LinkByName("probe1"); err != nil {
		return fmt.Errorf("the pair's other end: %w", err)
	}
	return nil
}

// tryNftables makes what the egress namespace uses: a chain that drops, and a
// rule on an interface's name.
func tryNftables() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	drop := nftables.ChainPolicyDrop
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "probe"})
	chain := conn.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte("probe0"), make([]byte, 10)...)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("add table, chain and rule: %w", err)
	}
	rules, err := conn.GetRules(table, chain)
	if err != nil || len(rules) != 1 {
		return fmt.Errorf("read the rule back: %d rules, %w", len(rules), err)
	}
	return nil
}
