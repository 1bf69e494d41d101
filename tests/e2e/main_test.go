package e2e

import (
	"context"
	"os"
	"testing"

	"sandboxd/tests/internal/harness"
)

// sys is the system under test, shared by all tests; those that stop its daemon
// start it again.
var sys *harness.System

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == otherUserArg {
		otherUserMain()
		return
	}
	suite := harness.Suite{Name: "e2e", Start: func(ctx context.Context) (_ *harness.System, err error) {
		sys, err = harness.Start(ctx)
		return sys, err
	}}
	os.Exit(suite.Run(m))
}
