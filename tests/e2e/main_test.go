package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/tests/internal/harness"
	"sandboxd/tests/internal/leftovers"
)

// sys is the system under test, shared by all tests; those that stop its daemon
// start it again.
var sys *harness.System

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == otherUserArg {
		otherUserMain()
		return
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	before, err := leftovers.Take()
	if err == nil {
		sys, err = harness.Start(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: the system did not start:", err)
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
		fmt.Fprintln(os.Stderr, "e2e: the system did not stop well:", err)
		code = 1
	}
	left, err := leftovers.Settle(before, harness.Scale(15*time.Second))
	if err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "e2e: left behind (%v):\n  %s\n", err, strings.Join(left, "\n  "))
		code = 1
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, "e2e: what sandboxd said:\n"+tail(log, 16<<10))
	}
	return code
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
