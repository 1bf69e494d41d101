package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

func (a *app) psCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ps [TENANT]",
		Short: "List the commands of a jail, or of all",
		Args:  args(0, 1, "at most one TENANT"),
		RunE: func(c *cobra.Command, given []string) error {
			tenants := given
			if len(given) == 0 {
				jails, err := a.client.Jails(c.Context())
				if err != nil {
					return err
				}
				for i := range jails.Jails {
					tenants = append(tenants, jails.Jails[i].Tenant)
				}
			}
			all := api.ProcessList{Processes: []api.Process{}}
			for _, t := range tenants {
				list, err := a.client.Processes(c.Context(), t)
				if err != nil {
					return err
				}
				all.Processes = append(all.Processes, list.Processes...)
			}
			if a.json {
				return a.printJSON(all)
			}
			return a.printProcesses(all.Processes)
		},
	}
}

func (a *app) printProcesses(list []api.Process) error {
	var rows [][]string
	for i := range list {
		p := &list[i]
		mode := "foreground"
		if p.Background {
			mode = "background"
		}
		rows = append(rows, []string{p.Tenant, p.ExecID, processState(p), mode, age(p.Started), durationUse(api.DurationUse{Used: p.Usage.CPU.Used}), shorten(strings.Join(p.Argv, " "), 60)})
	}
	return a.table([]string{"TENANT", "EXEC", "STATE", "MODE", "STARTED", "CPU", "COMMAND"}, rows)
}

func processState(p *api.Process) string {
	switch {
	case p.State != "exited":
		return p.State
	case p.TimedOut:
		return "timed out"
	case p.OOMKilled:
		return "out of memory"
	case p.Signal != "":
		return p.Signal
	case p.ExitCode != nil:
		return "exit " + strconv.Itoa(*p.ExitCode)
	default:
		return "ended"
	}
}

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "logs [-f] TENANT EXEC | logs [-f] RUN",
		Short: "Print the output of a command or a run",
		Args:  args(1, 2, "TENANT EXEC, or RUN"),
		RunE: func(c *cobra.Command, given []string) error {
			if len(given) == 1 {
				err := a.logs(a.client.RunEvents(c.Context(), given[0], 0, follow))
				if refused := (*api.Error)(nil); errors.As(err, &refused) && refused.Code == api.CodeNotFound {
					refused.Hint = "for a command in a jail: sandboxctl logs TENANT EXEC; the audit log keeps every run"
				}
				return err
			}
			return a.logs(a.client.ProcessEvents(c.Context(), given[0], given[1], 0, follow))
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until it ends")
	return c
}

func (a *app) logs(events iter.Seq2[api.Event, error]) error {
	for e, err := range events {
		if err != nil {
			return err
		}
		if a.json {
			err = a.printEvent(&e)
		} else {
			switch e.Type {
			case api.EventStdout, api.EventStderr:
				err = a.printOutput(&e)
			case api.EventLog:
				a.printLog(e.Log)
			case api.EventDenied:
				a.printDenial(e.Denial)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *app) killCommand() *cobra.Command {
	var sig string
	c := &cobra.Command{
		Use:   "kill [-s SIGNAL] TENANT EXEC",
		Short: "Kill a command and all it started, or signal it",
		Args:  args(2, 2, "TENANT EXEC"),
		RunE: func(c *cobra.Command, given []string) error {
			if sig == "" {
				return a.done(a.client.Kill(c.Context(), given[0], given[1]))
			}
			return a.done(a.client.Signal(c.Context(), given[0], given[1], strings.TrimPrefix(strings.ToUpper(sig), "SIG")))
		},
	}
	c.Flags().StringVarP(&sig, "signal", "s", "", "signal to send in place of killing the whole tree")
	return c
}

func (a *app) waitCommand() *cobra.Command {
	req := &api.WaitRequest{}
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "wait TENANT EXEC",
		Short: "Wait until a command listens on a port, says something or ends",
		Args:  args(2, 2, "TENANT EXEC"),
		RunE: func(c *cobra.Command, given []string) error {
			if req.Port == 0 && req.LogRegexp == "" {
				req.Exit = true
			}
			req.Timeout = policy.Duration(timeout)
			answer, err := a.client.Wait(c.Context(), given[0], given[1], req)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(answer)
			}
			_, err = fmt.Fprintf(a.out, "after %s: %s\n", rounded(answer.Waited.Std()), processState(&answer.Process))
			return err
		},
	}
	c.Flags().IntVar(&req.Port, "port", 0, "until it listens on this port")
	c.Flags().StringVar(&req.LogRegexp, "log", "", "until its output matches this RE2 expression")
	c.Flags().BoolVar(&req.Exit, "exit", false, "until it ends (the default)")
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long at most (default 30s)")
	return c
}

func (a *app) portCommand() *cobra.Command {
	var ttl time.Duration
	expose := &cobra.Command{
		Use:   "expose TENANT PORT",
		Short: "Publish a port of the jail and print its URL",
		Long: `Publishes a port of the jail and prints its URL. A port that is published already
gets a new one, and the old one ends.`,
		Args: args(2, 2, "TENANT PORT"),
		RunE: func(c *cobra.Command, given []string) error {
			n, err := portArg(given[1])
			if err != nil {
				return err
			}
			p, err := a.client.Expose(c.Context(), given[0], n, ttl)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(p)
			}
			_, err = fmt.Fprintln(a.out, p.URL)
			return err
		},
	}
	expose.Flags().DurationVar(&ttl, "ttl", 0, "how long (default: as long as the jail lives)")
	list := &cobra.Command{
		Use:   "list TENANT",
		Short: "List published ports",
		Args:  args(1, 1, "TENANT"),
		RunE: func(c *cobra.Command, given []string) error {
			ports, err := a.client.Ports(c.Context(), given[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(ports)
			}
			var rows [][]string
			for _, p := range ports.Ports {
				rows = append(rows, []string{strconv.Itoa(p.Port), p.URL, p.Expires.Local().Format(time.DateTime)})
			}
			return a.table([]string{"PORT", "URL", "EXPIRES"}, rows)
		},
	}
	closing := &cobra.Command{
		Use:   "close TENANT PORT",
		Short: "Stop publishing a port",
		Args:  args(2, 2, "TENANT PORT"),
		RunE: func(c *cobra.Command, given []string) error {
			n, err := portArg(given[1])
			if err != nil {
				return err
			}
			return a.done(a.client.ClosePort(c.Context(), given[0], n))
		},
	}
	return group("port", "Publish ports of a jail", expose, list, closing)
}

func portArg(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 {
		return 0, usagef("%q is not a port, 1 to 65535", s)
	}
	return n, nil
}

func (a *app) runsCommand() *cobra.Command {
	var tenant, status string
	var limit int
	list := &cobra.Command{
		Use:   "list",
		Short: "List runs, newest first",
		Args:  args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			runs, err := a.client.Runs(c.Context(), tenant, status, time.Time{}, limit)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(runs)
			}
			var rows [][]string
			for i := range runs.Runs {
				r := &runs.Runs[i]
				code := ""
				if r.Error != nil {
					code = r.Error.Code
				}
				rows = append(rows, []string{r.RunID, r.Tenant, r.Language, r.Environment, r.Status, code, age(r.Started), durationUse(api.DurationUse{Used: r.Usage.Wall.Used})})
			}
			return a.table([]string{"RUN", "TENANT", "LANGUAGE", "WHERE", "STATUS", "ERROR", "STARTED", "WALL"}, rows)
		},
	}
	list.Flags().StringVarP(&tenant, "tenant", "t", "", "only this tenant's")
	list.Flags().StringVar(&status, "status", "", "only running, ok, error, refused or killed")
	list.Flags().IntVar(&limit, "limit", 0, "at most so many (default 100)")
	show := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run's record",
		Args:  args(1, 1, "RUN"),
		RunE: func(c *cobra.Command, given []string) error {
			return a.showRun(a.client.GetRun(c.Context(), given[0]))
		},
	}
	cancel := &cobra.Command{
		Use:   "cancel RUN",
		Short: "End a run",
		Args:  args(1, 1, "RUN"),
		RunE: func(c *cobra.Command, given []string) error {
			return a.showRun(a.client.CancelRun(c.Context(), given[0]))
		},
	}
	return group("runs", "Records of runs", list, show, cancel, a.replayCommand())
}

// showRun prints a record; how the run ended is not how showing it did.
func (a *app) showRun(r *api.Run, err error) error {
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	for i := range r.Logs {
		a.printLog(&r.Logs[i])
	}
	for i := range r.Denials {
		a.printDenial(&r.Denials[i])
	}
	var exit *exitError
	if err := a.printRun(r); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// completeTenants offers the tenants that have a jail.
func (a *app) completeTenants(ctx context.Context) []string {
	jails, err := a.client.Jails(ctx)
	if err != nil {
		return nil
	}
	var out []string
	for i := range jails.Jails {
		out = append(out, jails.Jails[i].Tenant)
	}
	slices.Sort(out)
	return out
}
