package browser

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/daemon/client"
	"sandboxd/tests/internal/harness"
	"sandboxd/tests/internal/leftovers"
	"sandboxd/tests/internal/npmregistry"
)

// prefix is that of tenants who may fetch packages.
const prefix = "web-"

var (
	sys       *harness.System
	box       *client.Client
	artifacts string
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	before, err := leftovers.Take()
	if err == nil {
		err = start(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "browser: the system did not start:", err)
		return 1
	}
	ended := make(chan int, 1)
	go func() { ended <- m.Run() }()
	code := 1
	select {
	case code = <-ended:
	case <-ctx.Done():
	}
	box.Close()
	log := sys.Log()
	if err := sys.Close(context.WithoutCancel(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, "browser: the system did not stop well:", err)
		code = 1
	}
	left, err := leftovers.Settle(before, 15*time.Second)
	if err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "browser: left behind (%v):\n  %s\n", err, strings.Join(left, "\n  "))
		code = 1
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, "browser: what sandboxd said:\n"+log[max(0, len(log)-16<<10):])
	}
	return code
}

func start(ctx context.Context) error {
	registry, err := npmregistry.Find(ctx)
	if err != nil {
		return err
	}
	bin, err := harness.Bin()
	if err != nil {
		return err
	}
	artifacts = filepath.Join(bin, "artifacts")
	if err := os.MkdirAll(artifacts, 0o755); err != nil {
		return err
	}
	sys, err = harness.Start(ctx, harness.Profile{Prefix: prefix, Text: fmt.Sprintf(
		"{jail: {template: host, preview: true, env: {npm_config_registry: %q}}, egress: [%s]}", registry.URL, registry.Rule("cache: packages"))})
	if err != nil {
		return err
	}
	if err != nil {
		return err
	}
	box = client.New(sys.API.Socket)
	return nil
}
