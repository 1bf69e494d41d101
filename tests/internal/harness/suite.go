package harness

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/tests/internal/leftovers"
)

// A Suite is a package of tests of one system, which all of them share.
type Suite struct {
	// Name begins what the suite says of itself.
	Name string
	// Start makes the system; Stop, if any, ends what else Start made.
	Start func(context.Context) (*System, error)
	Stop  func()
}

// Run runs the tests and returns the program's exit code: they must have passed,
// the system must have stopped well, and nothing may be left behind, also after
// an interrupt.
func (s *Suite) Run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	before, err := leftovers.Take()
	var sys *System
	if err == nil {
		sys, err = s.Start(ctx)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: the system did not start: %v\n", s.Name, err)
		return 1
	}
	ended := make(chan int, 1)
	go func() { ended <- m.Run() }()
	code := 1
	select {
	case code = <-ended:
	case <-ctx.Done():
	}
	if s.Stop != nil {
		s.Stop()
	}
	log := sys.Log()
	if err := sys.Close(context.WithoutCancel(ctx)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: the system did not stop well: %v\n", s.Name, err)
		code = 1
	}
	left, err := leftovers.Settle(before, Scale(15*time.Second))
	if err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "%s: left behind (%v):\n  %s\n", s.Name, err, strings.Join(left, "\n  "))
		code = 1
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "%s: what sandboxd said:\n%s\n", s.Name, log[max(0, len(log)-16<<10):])
	}
	return code
}
