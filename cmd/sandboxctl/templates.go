package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
	"sandboxd/jail/rootfs"
)

func (a *app) templateCommand() *cobra.Command {
	onHost := false
	add := &cobra.Command{
		Use:   "import NAME PATH",
		Short: "Import a root file system from a folder, a tar or an image archive",
		Long: `Makes PATH the template NAME, in place of one that has the name. PATH is a folder,
a tar, an OCI layout (as a tar or folder) or what docker save writes, plain or
compressed with gzip or zstd; - is standard input. It is all there or not at all.
Jails that run keep the template they began with.`,
		Example: `  sandboxctl template import debian ./debian-root
  docker save python:3 | sandboxctl template import python -`,
		Args: args(2, 2, "NAME PATH"),
		RunE: func(c *cobra.Command, given []string) error {
			t, err := a.importTemplate(c.Context(), given[0], given[1], onHost)
			if a.errTTY {
				fmt.Fprint(a.errOut, "\r\x1b[K")
			}
			if err != nil {
				return err
			}
			return a.printTemplates([]api.Template{*t}, t)
		},
	}
	add.Flags().BoolVar(&onHost, "on-host", false, "the daemon reads PATH itself, on its host")
	list := &cobra.Command{
		Use:   "list",
		Short: "List templates",
		Args:  args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := a.client.Templates(c.Context())
			if err != nil {
				return err
			}
			return a.printTemplates(all.Templates, all)
		},
	}
	rm := &cobra.Command{
		Use:   "rm NAME",
		Short: "Remove a template; jails that run keep it until they end",
		Args:  args(1, 1, "NAME"),
		RunE: func(c *cobra.Command, given []string) error {
			return a.done(a.client.RemoveTemplate(c.Context(), given[0]))
		},
	}
	return group("template", "Root file systems that jails may have in place of the host's", add, list, rm)
}

func (a *app) importTemplate(ctx context.Context, name, path string, onHost bool) (*api.Template, error) {
	progress := func(*api.ImportProgress) {}
	if a.errTTY {
		progress = func(p *api.ImportProgress) {
			fmt.Fprintf(a.errOut, "\r\x1b[K%s", p.Stage)
			if p.Layers > 1 {
				fmt.Fprintf(a.errOut, " layer %d of %d", p.Layer, p.Layers)
			}
			fmt.Fprintf(a.errOut, ": %s in %d entries", bytesText(p.Bytes), p.Entries)
		}
	}
	if onHost {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, &usageError{err}
		}
		return a.client.ImportTemplatePath(ctx, name, abs, progress)
	}
	if path == "-" {
		return a.client.ImportTemplate(ctx, name, a.in, progress)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &usageError{err}
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return a.client.ImportTemplate(ctx, name, f, progress)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(rootfs.WriteTree(ctx, f, w)) }()
	defer r.Close()
	return a.client.ImportTemplate(ctx, name, r, progress)
}

// printTemplates prints a table, or whole as JSON.
func (a *app) printTemplates(all []api.Template, whole any) error {
	if a.json {
		return a.printJSON(whole)
	}
	var rows [][]string
	for i := range all {
		t := &all[i]
		rows = append(rows, []string{t.Name, t.ID[:min(len(t.ID), 19)], t.Kind, strconv.Itoa(len(t.Layers)), bytesText(t.Bytes), strconv.FormatInt(t.Entries, 10), t.Created.Local().Format(time.DateTime)})
	}
	return a.table([]string{"NAME", "ID", "KIND", "LAYERS", "SIZE", "ENTRIES", "IMPORTED"}, rows)
}
