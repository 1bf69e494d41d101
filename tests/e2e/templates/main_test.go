package templates

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sandboxd/tests/internal/harness"
)

// sys is the system under test.
var sys *harness.System

// debianTar is the small Debian.
var debianTar string

// The suite's profiles: a tenant that begins so has that one.
const (
	hostPrefix = "tools-"   // the host's system, and the template debian on demand
	debPrefix  = "debian-"  // any of the suite's templates, read-only
	rootPrefix = "changes-" // the same with a writable root, and a package archive
)

func TestMain(m *testing.M) {
	suite := harness.Suite{Name: "templates", Start: func(ctx context.Context) (_ *harness.System, err error) {
		if err := makeDebian(ctx); err != nil {
			return nil, fmt.Errorf("no Debian to import: %w", err)
		}
		sys, err = harness.Start(ctx, profiles()...)
		return sys, err
	}}
	os.Exit(suite.Run(m))
}

// makeDebian builds the template's tar unless it is there.
func makeDebian(ctx context.Context) error {
	bin, err := harness.Bin()
	if err != nil {
		return err
	}
	dir := filepath.Join(bin, "cache", "debian")
	debianTar = filepath.Join(dir, "debian.tar")
	cmd := exec.CommandContext(ctx, "./debian.sh", dir)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

func profiles() []harness.Profile {
	const limits = "limits: {memory: 1GiB, cpus: 2, pids: 256, disk: 1GiB}"
	return []harness.Profile{
		{Prefix: hostPrefix, Text: "{jail: {template: host, templates: [debian], " + limits + "}}"},
		{Prefix: debPrefix, Text: "{jail: {template: debian, templates: [tar, folder, image, known, host], " + limits + "}}"},
		{Prefix: rootPrefix, Text: "{jail: {template: debian, templates: [host], root: writable, " + limits + "}, " +
			"egress: [{host: " + harness.OtherHost + ", methods: [GET], addresses: [198.51.100.0/24], resolve: [WORLD]}]}"},
	}
}
