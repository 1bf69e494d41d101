package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
)

func (a *app) jailCommand() *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List jails",
		Args:  args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			jails, err := a.client.Jails(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(jails)
			}
			var rows [][]string
			for i := range jails.Jails {
				j := &jails.Jails[i]
				rows = append(rows, []string{j.Tenant, j.State, age(j.Created), strconv.Itoa(j.Processes), sizeOrUnknown(j.Usage.MemoryNow), strconv.Itoa(len(j.Ports)), j.Deadline.Local().Format(time.DateTime)})
			}
			return a.table([]string{"TENANT", "STATE", "AGE", "PROCESSES", "MEMORY", "PORTS", "ENDS AT"}, rows)
		},
	}
	one := func(use, short string, call func(c *cobra.Command, tenant string) (*api.Jail, error)) *cobra.Command {
		return &cobra.Command{
			Use: use + " TENANT", Short: short, Args: args(1, 1, "TENANT"),
			ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return a.completeTenants(c.Context()), cobra.ShellCompDirectiveNoFileComp
			},
			RunE: func(c *cobra.Command, given []string) error {
				j, err := call(c, given[0])
				if err != nil || j == nil {
					return err
				}
				return a.printJail(j)
			},
		}
	}
	return group("jail", "Make, look at and end jails", list, a.jailCreateCommand(), a.jailUpdateCommand(),
		one("show", "Show a jail", func(c *cobra.Command, t string) (*api.Jail, error) { return a.client.Jail(c.Context(), t) }),
		one("destroy", "End a jail and all it owns", func(c *cobra.Command, t string) (*api.Jail, error) {
			return nil, a.done(a.client.DestroyJail(c.Context(), t))
		}),
		one("freeze", "Stop a jail until the next request", func(c *cobra.Command, t string) (*api.Jail, error) { return a.client.FreezeJail(c.Context(), t) }),
		one("thaw", "Let a jail go on", func(c *cobra.Command, t string) (*api.Jail, error) { return a.client.ThawJail(c.Context(), t) }))
}

func (a *app) printJail(j *api.Jail) error {
	if a.json {
		return a.printJSON(j)
	}
	enforced := strings.Join(j.Enforced, ", ")
	if enforced == "" {
		enforced = "none on this host"
	}
	a.fields(a.out,
		[2]string{"tenant", j.Tenant}, [2]string{"state", j.State}, [2]string{"created", j.Created.Local().Format(time.DateTime)},
		[2]string{"ends at", j.Deadline.Local().Format(time.DateTime)}, [2]string{"frozen after", j.IdleTimeout.String() + " without activity"},
		[2]string{"template", j.Template}, [2]string{"workspace", j.Workspace}, [2]string{"processes", strconv.Itoa(j.Processes)},
		[2]string{"memory", sizeOrUnknown(j.Usage.MemoryNow) + " of " + j.Limits.Memory.String()},
		[2]string{"disk", sizeOrUnknown(j.Usage.Disk) + " of " + j.Limits.Disk.String()},
		[2]string{"enforced", enforced}, [2]string{"cause", j.Cause})
	for _, p := range j.Ports {
		fmt.Fprintf(a.out, "port %d  %s\n", p.Port, oneLine(p.URL))
	}
	for i := range j.Denials {
		a.printDenial(&j.Denials[i])
	}
	return nil
}

func (a *app) lsCommand() *cobra.Command {
	depth := 1
	c := &cobra.Command{
		Use:   "ls TENANT [PATH]",
		Short: "List a folder of the jail",
		Args:  args(1, 2, "TENANT [PATH]"),
		RunE: func(c *cobra.Command, given []string) error {
			path := "/workspace"
			if len(given) == 2 {
				path = jailPath(given[1])
			}
			list, err := a.client.ListFiles(c.Context(), given[0], path, depth)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(list)
			}
			var rows [][]string
			for i := range list.Files {
				f := &list.Files[i]
				name := f.Name
				if f.Target != "" {
					name += " -> " + f.Target
				}
				rows = append(rows, []string{f.Type, f.Mode, strconv.FormatInt(f.Size, 10), f.MTime.Local().Format(time.DateTime), name})
			}
			return a.table([]string{"TYPE", "MODE", "SIZE", "CHANGED", "NAME"}, rows)
		},
	}
	c.Flags().IntVar(&depth, "depth", 1, "levels to list")
	return c
}

// jailPath makes relative paths start at the workspace.
func jailPath(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return "/workspace/" + p
}

func (a *app) catCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cat TENANT PATH",
		Short: "Print a file of the jail",
		Args:  args(2, 2, "TENANT PATH"),
		RunE: func(c *cobra.Command, given []string) error {
			f, err := a.client.ReadFile(c.Context(), given[0], jailPath(given[1]))
			if err != nil {
				return err
			}
			defer f.Close()
			if !a.outTTY {
				_, err = io.Copy(a.out, f)
				return err
			}
			const most = 16 << 20
			text, err := io.ReadAll(io.LimitReader(f, most))
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.out, escape(string(text)))
			return err
		},
	}
}

func (a *app) cpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cp TENANT:PATH FILE | cp FILE TENANT:PATH",
		Short: "Copy a file or a folder out of or into the jail",
		Long: `Copies a file, or a folder with all that is in it. A PATH in the jail begins at
/workspace unless it begins with /. Out of the jail the copy must be a new file or
folder: nothing of yours is overwritten.`,
		Example: `  sandboxctl cp ./project bob:project
  sandboxctl cp bob:project/dist ./dist`,
		Args: args(2, 2, "TENANT:PATH FILE, or FILE TENANT:PATH"),
		RunE: func(c *cobra.Command, given []string) error {
			from, fromPath, out := strings.Cut(given[0], ":")
			to, toPath, in := strings.Cut(given[1], ":")
			switch {
			case out && !in:
				return a.done(a.copyOut(c, from, fromPath, given[1]))
			case in && !out:
				return a.done(a.copyIn(c, given[0], to, toPath))
			default:
				return usagef("exactly one side of cp is TENANT:PATH")
			}
		},
	}
}

func (a *app) copyOut(c *cobra.Command, tenant, path, file string) (err error) {
	st, err := a.client.StatFile(c.Context(), tenant, jailPath(path))
	if err != nil {
		return err
	}
	if st.Type == "dir" {
		r, err := a.client.ReadArchive(c.Context(), tenant, jailPath(path))
		if err != nil {
			return err
		}
		defer r.Close()
		return a.saveTree(r, file)
	}
	r, err := a.client.ReadFile(c.Context(), tenant, jailPath(path))
	if err != nil {
		return err
	}
	defer r.Close()
	// O_EXCL: a file of the caller's is not overwritten by what a sandbox made.
	w, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return &usageError{err}
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	_, err = io.Copy(w, r)
	return err
}

func (a *app) copyIn(c *cobra.Command, file, tenant, path string) error {
	f, err := os.Open(file)
	if err != nil {
		return &usageError{err}
	}
	defer f.Close()
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		return a.copyTreeIn(c.Context(), file, tenant, jailPath(path))
	}
	if err != nil || !st.Mode().IsRegular() {
		return usagef("%s is not a file", file)
	}
	return a.client.WriteFile(c.Context(), tenant, jailPath(path), f, uint32(st.Mode().Perm()))
}
