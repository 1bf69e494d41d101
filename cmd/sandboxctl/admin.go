package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
	"sandboxd/daemon/client"
	"sandboxd/internal/kernel"
	"sandboxd/policy"
)

func (a *app) policyCommand() *cobra.Command {
	show := &cobra.Command{
		Use: "show TENANT", Short: "Show what a tenant may do and which line grants it", Args: args(1, 1, "TENANT"),
		RunE: func(c *cobra.Command, given []string) error {
			view, err := a.client.Policy(c.Context(), given[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(view)
			}
			var rows [][]string
			for _, g := range view.Grants {
				from := "default"
				if g.Line > 0 {
					from = fmt.Sprintf("%s:%d", g.File, g.Line)
				}
				rows = append(rows, []string{g.Field, g.Value, from})
			}
			return a.table([]string{"FIELD", "VALUE", "FROM"}, rows)
		},
	}
	return group("policy", "The policy in force", show, a.policyCheckCommand(), a.policyReloadCommand())
}

func (a *app) policyCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Say what is wrong with a policy file, line by line", Args: args(1, 1, "FILE"),
		Long: `Says what is wrong with a policy file. It needs no daemon, and puts nothing in
force. It exits with 1 when something is wrong.`,
		RunE: func(_ *cobra.Command, given []string) error {
			_, err := policy.Load(given[0])
			var faults policy.ParseErrors
			var fault *policy.ParseError
			out := api.PolicyCheck{OK: err == nil, Problems: []api.PolicyProblem{}}
			switch {
			case err == nil:
			case errors.As(err, &faults):
				for _, f := range faults {
					out.Problems = append(out.Problems, api.PolicyProblem{Line: f.Line, Column: f.Column, Field: f.Field, Message: f.Message})
				}
			case errors.As(err, &fault):
				out.Problems = append(out.Problems, api.PolicyProblem{Message: fault.Message})
			default:
				return err
			}
			if a.json {
				err = a.printJSON(out)
			} else if err == nil {
				_, err = fmt.Fprintln(a.out, "ok")
			} else {
				for line := range strings.SplitSeq(err.Error(), "\n") {
					fmt.Fprintln(a.out, oneLine(line))
				}
				err = nil
			}
			if err == nil && !out.OK {
				err = &exitError{exitFailed}
			}
			return err
		},
	}
}

func (a *app) policyReloadCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Put the policy file in force as it is now", Args: args(0, 0, "no arguments"),
		Long: `Has the daemon read its policy file again, all or nothing: with a fault in the
file the old policy stays in force. What the new one no longer grants is cut,
also requests and connections under way; everything else goes on.`,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.client.ReloadPolicy(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(r)
			}
			_, err = fmt.Fprintf(a.out, "%s is in force; ended: %d runs, %d jails\n", oneLine(r.File), r.Runs, r.Jails)
			return err
		},
	}
}

func (a *app) auditCommand() *cobra.Command {
	verify := &cobra.Command{
		Use: "verify", Short: "Check that no record was changed, removed, moved or cut off", Args: args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			v, err := a.client.VerifyAudit(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(v)
			} else {
				err = a.printVerdict(v)
			}
			if err == nil && !v.OK {
				err = &exitError{exitFailed}
			}
			return err
		},
	}
	return group("audit", "The audit log", verify)
}

func (a *app) printVerdict(v *api.AuditVerdict) error {
	if v.OK {
		_, err := fmt.Fprintf(a.out, "ok: %d records, files: %d, the chain is whole\n", v.Records, v.Files)
		return err
	}
	if p := v.Problem; p != nil {
		_, err := fmt.Fprintf(a.out, "%s: %s, line %d: %s\n", p.Kind, oneLine(p.File), p.Line, oneLine(p.Message))
		return err
	}
	_, err := fmt.Fprintln(a.out, "the chain is broken")
	return err
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the daemon's state", Args: args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.client.Status(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			return a.printStatus(s)
		},
	}
}

func (a *app) printStatus(s *api.Status) error {
	audit := fmt.Sprintf("%d records", s.Audit.Seq)
	if s.Audit.Error != "" {
		audit = "NOT WRITABLE, nothing new runs: " + s.Audit.Error
	}
	process, isolates, preparing := "", "", ""
	if s.Pid != 0 {
		process = strconv.Itoa(s.Pid)
	}
	if p := s.Isolates; p != nil {
		isolates = fmt.Sprintf("%d workers, %d of tenants, %d running, %d runs, %d killed", p.Workers, p.Tenants, p.Running, p.Runs, p.Killed)
		preparing = p.Preparing
	} else if s.Audit.Error == "" {
		audit = "" // for administrators
	}
	a.fields(a.out,
		[2]string{"state", s.State}, [2]string{"version", s.Version}, [2]string{"mode", s.Mode},
		[2]string{"running for", age(s.Started)}, [2]string{"process", process}, [2]string{"policy", s.Policy},
		[2]string{"sockets", strings.Join(s.Sockets, ", ")}, [2]string{"preview", s.Preview}, [2]string{"limits", s.Limits},
		[2]string{"isolates", isolates}, [2]string{"being prepared", preparing}, [2]string{"egress proxy", egressWords(s.Egress)}, [2]string{"package cache", packageWords(s.Egress)},
		[2]string{"jails", strconv.Itoa(s.Jails)}, [2]string{"jails kept ready", spareWords(s.Spares)},
		[2]string{"runs", fmt.Sprintf("%d running, %d in all; %d commands in jails", s.Runs.Running, s.Runs.Total, s.Runs.Execs)},
		[2]string{"audit", audit})
	for _, w := range s.Warnings {
		fmt.Fprintln(a.out, "warning: "+oneLine(w))
	}
	return nil
}

func spareWords(s *api.JailSpares) string {
	if s == nil {
		return "" // for administrators
	}
	text := fmt.Sprintf("%d of %d, %d taken, %d missed", s.Ready, s.Size, s.Taken, s.Missed)
	if s.Ready < s.Size && s.LastError != "" {
		text += "; the last could not be made: " + s.LastError
	}
	return text
}

func egressWords(e *api.Egress) string {
	switch {
	case e == nil:
		return ""
	case !e.Running:
		return fmt.Sprintf("NOT RUNNING for %s, nothing passes: %s", age(e.Since), oneLine(e.Problem))
	case e.Restarts > 0:
		return fmt.Sprintf("runs for %s, replaced %d times (%s)", age(e.Since), e.Restarts, oneLine(e.Problem))
	}
	return "runs for " + age(e.Since)
}

func packageWords(e *api.Egress) string {
	if e == nil || e.Packages == nil {
		return ""
	}
	return fmt.Sprintf("%d answers, %s of %s", e.Packages.Answers, e.Packages.Bytes, e.Packages.Limit)
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Say what this host offers, what is missing and what follows", Args: args(0, 0, "no arguments"),
		Long: `Says what the daemon's host offers. Without a daemon it tries this host itself.
It exits with 1 when something is missing that sandboxd needs.`,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := a.client.Doctor(c.Context())
			var unreachable *client.UnreachableError
			if errors.As(err, &unreachable) {
				fmt.Fprintln(a.errOut, "no daemon answers; this is what this host offers to one:")
				d, err = localDoctor(c.Context()), nil
			}
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(d)
			} else {
				err = a.printDoctor(d)
			}
			if err == nil && !d.OK {
				err = &exitError{exitFailed}
			}
			return err
		},
	}
}

// localDoctor tries the kernel from this process.
func localDoctor(ctx context.Context) *api.Doctor {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	d := &api.Doctor{OK: true, Checks: []api.Check{}}
	for _, c := range kernel.Probe(ctx, "/proc/self/exe").Checks() {
		d.Checks = append(d.Checks, api.Check{Name: c.Name, Status: string(c.Status), Found: c.Found, Needed: c.Needed, Consequence: c.Consequence, Remedy: c.Remedy})
		d.OK = d.OK && c.Status != kernel.Missing
	}
	return d
}

func (a *app) printDoctor(d *api.Doctor) error {
	var rows [][]string
	for _, c := range d.Checks {
		rows = append(rows, []string{c.Status, c.Name, shorten(c.Found, 60), c.Needed})
	}
	if err := a.table([]string{"", "CHECK", "FOUND", "NEEDED"}, rows); err != nil {
		return err
	}
	for _, c := range d.Checks {
		if c.Consequence != "" {
			fmt.Fprintf(a.out, "\n%s: %s\n  what follows: %s\n", c.Status, oneLine(c.Name), oneLine(c.Consequence))
			if c.Remedy != "" {
				fmt.Fprintf(a.out, "  remedy: %s\n", oneLine(c.Remedy))
			}
		}
	}
	if d.OK {
		_, err := fmt.Fprintln(a.out, "\nThis host has what sandboxd needs.")
		return err
	}
	_, err := fmt.Fprintln(a.out, "\nThis host lacks something that sandboxd needs.")
	return err
}
