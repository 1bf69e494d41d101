package main

import (
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
)

func (a *app) snapshotCommand() *cobra.Command {
	label := ""
	create := &cobra.Command{
		Use:   "create TENANT",
		Short: "Copy workspace and home as they are at one moment",
		Args:  args(1, 1, "TENANT"),
		RunE: func(c *cobra.Command, given []string) error {
			s, err := a.client.Snapshot(c.Context(), given[0], label)
			if err != nil {
				return err
			}
			return a.printSnapshots([]api.Snapshot{*s}, s)
		},
	}
	create.Flags().StringVar(&label, "label", "", "what it is, for people")
	list := &cobra.Command{
		Use:   "list TENANT",
		Short: "List a tenant's snapshots, oldest first",
		Args:  args(1, 1, "TENANT"),
		RunE: func(c *cobra.Command, given []string) error {
			all, err := a.client.Snapshots(c.Context(), given[0])
			if err != nil {
				return err
			}
			return a.printSnapshots(all.Snapshots, all)
		},
	}
	restore := &cobra.Command{
		Use:   "restore TENANT SNAPSHOT",
		Short: "Put a snapshot in place of the files; the jail's commands end",
		Args:  args(2, 2, "TENANT SNAPSHOT"),
		RunE: func(c *cobra.Command, given []string) error {
			_, err := a.client.RestoreSnapshot(c.Context(), given[0], given[1])
			return a.done(err)
		},
	}
	rm := &cobra.Command{
		Use:   "rm TENANT SNAPSHOT",
		Short: "Delete a snapshot",
		Args:  args(2, 2, "TENANT SNAPSHOT"),
		RunE: func(c *cobra.Command, given []string) error {
			return a.done(a.client.DeleteSnapshot(c.Context(), given[0], given[1]))
		},
	}
	return group("snapshot", "Keep and bring back a tenant's files", create, list, restore, rm)
}

// printSnapshots prints a table, or whole as JSON.
func (a *app) printSnapshots(all []api.Snapshot, whole any) error {
	if a.json {
		return a.printJSON(whole)
	}
	var rows [][]string
	for i := range all {
		s := &all[i]
		rows = append(rows, []string{s.ID, s.State, s.Created.Local().Format(time.DateTime), bytesText(s.Bytes), strconv.FormatInt(s.Entries, 10), s.Label})
	}
	return a.table([]string{"SNAPSHOT", "STATE", "CREATED", "SIZE", "ENTRIES", "LABEL"}, rows)
}

func (a *app) diffCommand() *cobra.Command {
	since := ""
	c := &cobra.Command{
		Use:   "diff TENANT",
		Short: "List files that have changed since the jail was created, or since a snapshot",
		Args:  args(1, 1, "TENANT"),
		RunE: func(c *cobra.Command, given []string) error {
			d, err := a.client.Diff(c.Context(), given[0], since)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(d)
			}
			var rows [][]string
			for _, ch := range d.Changes {
				rows = append(rows, []string{ch.Kind, ch.Type, strconv.FormatInt(ch.Size, 10), ch.Path})
			}
			if d.Truncated {
				rows = append(rows, []string{"…", "", "", "there are more"})
			}
			return a.table([]string{"CHANGE", "TYPE", "SIZE", "PATH"}, rows)
		},
	}
	c.Flags().StringVar(&since, "since", "", "a snapshot")
	return c
}

func (a *app) exportCommand() *cobra.Command {
	snapshot := ""
	c := &cobra.Command{
		Use:   "export TENANT FILE|-",
		Short: "Save workspace and home as a tar",
		Args:  args(2, 2, "TENANT FILE|-"),
		RunE: func(c *cobra.Command, given []string) error {
			if given[1] == "-" && a.outTTY {
				return usagef("a tar is nothing for a terminal")
			}
			r, err := a.client.Export(c.Context(), given[0], snapshot)
			if err != nil {
				return err
			}
			defer r.Close()
			if given[1] == "-" {
				_, err = io.Copy(a.out, r)
				return err
			}
			return a.done(saveNew(given[1], r))
		},
	}
	c.Flags().StringVar(&snapshot, "snapshot", "", "of a snapshot; the files as they are now by default")
	return c
}

// saveNew writes a file that must not be there, and leaves none that is cut.
func saveNew(name string, r io.Reader) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &usageError{err}
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
