package templates

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sandboxd/tests/internal/harness"
	"sandboxd/tests/internal/leftovers"
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

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := makeDebian(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "templates: no Debian to import:", err)
		return 1
	}
	before, err := leftovers.Take()
	if err == nil {
		sys, err = harness.Start(ctx, profiles()...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "templates: the system did not start:", err)
		return 1
	}
	ended := make(chan int, 1)
	go func() { ended <- m.Run() }()
	code := 1
	select {
	case code = <-ended:
	case <-ctx.Done():
	}
	log := sys.Log()
	if err := sys.Close(context.WithoutCancel(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, "templates: the system did not stop well:", err)
		code = 1
	}
	left, err := leftovers.Settle(before, harness.Scale(15*time.Second))
	if err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "templates: left behind (%v): %q\n", err, left)
		code = 1
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, "templates: what sandboxd said:\n"+log[max(0, len(log)-16<<10):])
	}
	return code
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
