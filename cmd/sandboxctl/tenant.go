package main

import "github.com/spf13/cobra"

func (a *app) tenantCommand() *cobra.Command {
	yes := false
	rm := &cobra.Command{
		Use: "rm TENANT", Short: "End and delete all there is of a tenant", Args: args(1, 1, "TENANT"),
		Long: `Ends the tenant's runs and its jail, and deletes its files and snapshots, deployed
functions, recordings, keys and database. Nothing brings them back. The audit log
keeps its records. The policy is not changed: while it still grants the tenant
something, a request makes it anew.`,
		Example: "  sandboxctl tenant rm --yes agent-42",
		RunE: func(c *cobra.Command, given []string) error {
			if !yes {
				return usagef("this deletes all that there is of %s; say --yes if that is meant", given[0])
			}
			return a.done(a.client.RemoveTenant(c.Context(), given[0]))
		},
	}
	rm.Flags().BoolVar(&yes, "yes", false, "all of it is meant to go")
	return group("tenant", "All there is of a tenant", rm)
}
