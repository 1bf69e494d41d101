package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandboxd/daemon/client"
	"sandboxd/tests/internal/harness"
	"sandboxd/tests/internal/npmregistry"
)

// prefix is that of tenants who may fetch packages.
const prefix = "web-"

var (
	sys       *harness.System
	box       *client.Client
	artifacts string
)

func TestMain(m *testing.M) {
	suite := harness.Suite{Name: "browser", Start: start, Stop: func() { box.Close() }}
	os.Exit(suite.Run(m))
}

func start(ctx context.Context) (*harness.System, error) {
	registry, err := npmregistry.Find(ctx)
	if err != nil {
		return nil, err
	}
	bin, err := harness.Bin()
	if err != nil {
		return nil, err
	}
	artifacts = filepath.Join(bin, "artifacts")
	if err := os.MkdirAll(artifacts, 0o755); err != nil {
		return nil, err
	}
	sys, err = harness.Start(ctx, harness.Profile{Prefix: prefix, Text: fmt.Sprintf(
		"{jail: {template: host, preview: true, env: {npm_config_registry: %q}}, egress: [%s]}", registry.URL, registry.Rule("cache: packages"))})
	if err != nil {
		return nil, err
	}
	box = client.New(sys.API.Socket)
	return sys, nil
}
