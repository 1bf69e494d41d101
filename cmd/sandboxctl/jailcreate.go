package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// jailFlags are the limits of a jail on the command line.
type jailFlags struct {
	idle, life                       time.Duration
	memory, disk, ioBytes, bandwidth string
	cpus                             float64
	pids, openFiles, inodes, ioOps   int
}

func (f *jailFlags) register(s *pflag.FlagSet) {
	s.DurationVar(&f.idle, "idle", 0, "freeze it after so long without activity")
	s.DurationVar(&f.life, "lifetime", 0, "end it so long after it was made")
	s.StringVar(&f.memory, "memory", "", "limit of memory, such as 512MiB")
	s.Float64Var(&f.cpus, "cpus", 0, "limit of processors, such as 0.5")
	s.IntVar(&f.pids, "pids", 0, "limit of processes and threads")
	s.IntVar(&f.openFiles, "open-files", 0, "limit of each process's descriptors")
	s.StringVar(&f.disk, "disk", "", "limit of its files on the disk, such as 2GiB")
	s.IntVar(&f.inodes, "inodes", 0, "limit of its files, folders and links")
	s.StringVar(&f.ioBytes, "io-bytes", "", "limit of what it reads and of what it writes in a second, such as 50MiB")
	s.IntVar(&f.ioOps, "io-ops", 0, "limit of its reads and of its writes in a second")
	s.StringVar(&f.bandwidth, "bandwidth", "", "limit of what it sends and of what it receives in a second, such as 4MiB")
}

// fill puts what was given into a request.
func (f *jailFlags) fill(req *api.JailRequest) error {
	req.IdleTimeout, req.MaxLifetime = policy.Duration(f.idle), policy.Duration(f.life)
	l := policy.Limits{CPUs: f.cpus, Pids: f.pids, OpenFiles: f.openFiles, Inodes: f.inodes, IOOps: f.ioOps}
	for _, size := range []struct {
		flag, text string
		to         *policy.Size
	}{{"--memory", f.memory, &l.Memory}, {"--disk", f.disk, &l.Disk}, {"--io-bytes", f.ioBytes, &l.IOBytes}, {"--bandwidth", f.bandwidth, &l.Bandwidth}} {
		if size.text == "" {
			continue
		}
		v, err := policy.ParseSize(size.text)
		if err != nil {
			return usagef("%s: %w", size.flag, err)
		}
		*size.to = v
	}
	if l != (policy.Limits{}) {
		req.Limits = &l
	}
	return nil
}

func (a *app) jailCreateCommand() *cobra.Command {
	req, flags := &api.JailRequest{}, &jailFlags{}
	var env []string
	var ephemeral bool
	c := &cobra.Command{
		Use:   "create TENANT",
		Short: "Make a jail, or show the one there is",
		Args:  args(1, 1, "TENANT"),
		RunE: func(c *cobra.Command, given []string) error {
			var err error
			if req.Env, err = pairs("--env", env); err != nil {
				return err
			}
			if err := flags.fill(req); err != nil {
				return err
			}
			if ephemeral {
				req.Workspace = "ephemeral"
			}
			began := time.Now()
			j, err := a.client.CreateJail(c.Context(), given[0], req)
			if err != nil {
				return err
			}
			asked := req.Limits != nil || req.IdleTimeout != 0 || req.MaxLifetime != 0 || len(req.Env) > 0 || ephemeral
			if asked && j.Created.Before(began) {
				fmt.Fprintln(a.errOut, "the jail was there before and keeps what it was made with; sandboxctl jail update changes its limits")
			}
			return a.printJail(j)
		},
	}
	flags.register(c.Flags())
	c.Flags().StringArrayVar(&env, "env", nil, "NAME=VALUE for all its commands; may be repeated")
	c.Flags().StringVar(&req.Template, "template", "", "its root file system (default: the policy's)")
	c.Flags().BoolVar(&req.ResetRoot, "reset-root", false, "throw away what earlier jails have written to a writable root")
	c.Flags().BoolVar(&ephemeral, "ephemeral", false, "its workspace goes with it")
	return c
}

func (a *app) jailUpdateCommand() *cobra.Command {
	req, flags := &api.JailRequest{}, &jailFlags{}
	c := &cobra.Command{
		Use:   "update TENANT",
		Short: "Change limits of a jail while it lives, all or none",
		Long: `Changes what is given, up to what the policy grants; the rest stays. The limits
hold at once, --open-files for commands that start from then on. If one cannot
change, none does, and the error says which.`,
		Example: "  sandboxctl jail update bob --memory 512MiB --bandwidth 2MiB",
		Args:    args(1, 1, "TENANT"),
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.completeTenants(c.Context()), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, given []string) error {
			if err := flags.fill(req); err != nil {
				return err
			}
			if req.Limits == nil && req.IdleTimeout == 0 && req.MaxLifetime == 0 {
				return usagef("say what is to change, such as --memory 512MiB; 0 changes nothing")
			}
			j, err := a.client.UpdateJail(c.Context(), given[0], req)
			if err != nil {
				return err
			}
			return a.printJail(j)
		},
	}
	flags.register(c.Flags())
	return c
}
