package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
)

// copyTreeIn sends a folder of the caller's to the jail.
func (a *app) copyTreeIn(ctx context.Context, folder, tenant, path string) error {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := t.AddFS(os.DirFS(folder))
		if err == nil {
			err = t.Close()
		}
		w.CloseWithError(err)
	}()
	_, err := a.client.WriteArchive(ctx, tenant, path, r)
	r.Close()
	return err
}

// saveTree unpacks what a sandbox made into a new folder of the caller's.
func (a *app) saveTree(r io.Reader, folder string) (err error) {
	// A new one: nothing of the caller's is overwritten.
	if err := os.Mkdir(folder, 0o777); err != nil {
		return &usageError{err}
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the archive: %w", err)
		}
		if err := a.saveEntry(root, h, t); err != nil {
			return err
		}
	}
}

// saveEntry unpacks one entry; os.Root keeps all of it in the folder. Links
// that lead out of it are left out and named.
func (a *app) saveEntry(root *os.Root, h *tar.Header, r io.Reader) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the archive has an entry %q", h.Name)
	}
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o777)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(h.Mode)&0o777|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	case tar.TypeLink:
		return root.Link(path.Clean(h.Linkname), name)
	case tar.TypeSymlink:
		if path.IsAbs(h.Linkname) || !filepath.IsLocal(path.Join(path.Dir(name), h.Linkname)) {
			_, err := fmt.Fprintf(a.errOut, "left out: %s, a link to %s\n", a.safeErr(oneLine(h.Name)), a.safeErr(oneLine(h.Linkname)))
			return err
		}
		return root.Symlink(h.Linkname, name)
	}
	return nil
}

func (a *app) watchCommand() *cobra.Command {
	flat := false
	c := &cobra.Command{
		Use:   "watch TENANT [PATH]",
		Short: "Print changes of files in the jail",
		Long: `Prints each change of a file below PATH (default /workspace) as it happens, until
it is interrupted: create, modify, delete or rename, and the path.`,
		Example: `  sandboxctl watch bob project/src`,
		Args:    args(1, 2, "TENANT [PATH]"),
		RunE: func(c *cobra.Command, given []string) error {
			path := "/workspace"
			if len(given) == 2 {
				path = jailPath(given[1])
			}
			for e, err := range a.client.Watch(c.Context(), given[0], path, !flat) {
				if err != nil {
					return err
				}
				if err := a.printChange(&e); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&flat, "flat", false, "not the folders beneath")
	return c
}

func (a *app) printChange(e *api.Event) error {
	if a.json {
		return a.printEvent(e)
	}
	if e.File == nil {
		return nil
	}
	words := []string{e.File.Op, e.File.Path}
	if e.File.From != "" {
		words = append(words, "from", e.File.From)
	}
	if e.File.Reason != "" {
		words = append(words, "("+e.File.Reason+")")
	}
	_, err := fmt.Fprintln(a.out, a.safe(oneLine(strings.Join(words, " "))))
	return err
}
