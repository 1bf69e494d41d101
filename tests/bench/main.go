package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sandboxd/tests/internal/harness"
)

func main() {
	bin := flag.String("bin", "", "folder with sandboxd and sandboxctl; by default the module's build/")
	rounds := flag.Int("n", 300, "rounds of each row")
	only := flag.String("only", "", "measure one part alone: isolates, peers, jails or egress")
	asJSON := flag.Bool("json", false, "print JSON")
	flag.Parse()
	if *bin != "" {
		if err := os.Setenv("SANDBOXD_BIN", *bin); err != nil {
			fail(err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if args := flag.Args(); len(args) == 3 && args[0] == anewFlag {
		fail(serveAnew(ctx, args[1], args[2]))
	}
	if args := flag.Args(); len(args) == 4 && args[0] == peerFlag {
		if err := servePeer(ctx, args[1], args[2], args[3], *rounds); err != nil {
			fail(err)
		}
		return
	}
	r, err := run(ctx, *rounds, *only)
	if err != nil {
		stop()
		fail(err)
	}
	if *asJSON {
		err = json.NewEncoder(os.Stdout).Encode(r)
	} else {
		r.show()
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// A report is all that was measured.
type report struct {
	Rows    []row    `json:"rows"`
	Figures []figure `json:"figures"`
}

func run(ctx context.Context, rounds int, only string) (_ *report, err error) {
	parts := []struct {
		name    string
		measure func(r *report, ctx context.Context, dir string, rounds int) error
	}{{"isolates", (*report).isolates}, {"peers", (*report).peers}, {"jails", (*report).jails}, {"egress", (*report).egress}}
	known := only == ""
	dir, err := os.MkdirTemp("", "sandboxd-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &report{}
	for _, p := range parts {
		if only != "" && only != p.name {
			continue
		}
		known = true
		if err := p.measure(r, ctx, dir, rounds); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if !known {
		return nil, fmt.Errorf("-only: there is no part %q", only)
	}
	return r, nil
}

// isolates measures them.
func (r *report) isolates(ctx context.Context, dir string, rounds int) error {
	sys, figures, err := starts(ctx, dir)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	r.Figures = append(r.Figures, figures...)
	err = r.measure(ctx, sys, dir, rounds)
	if err = errors.Join(err, sys.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	// What is left needs no daemon, and would disturb it.
	for _, f := range []func(context.Context) ([]figure, error){collector, metering} {
		figures, err := f(ctx)
		if err != nil {
			return err
		}
		r.Figures = append(r.Figures, figures...)
	}
	return nil
}

// measure is what is measured at the daemon's socket.
func (r *report) measure(ctx context.Context, sys *harness.System, dir string, rounds int) error {
	other, stop, err := startAnew(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	function, err := functionRow(ctx, sys)
	if err != nil {
		return fmt.Errorf("function: %w", err)
	}
	tables, err := tableRows(ctx, sys)
	if err != nil {
		return fmt.Errorf("table: %w", err)
	}
	for _, group := range []struct {
		name   string
		rounds int
		steps  []step
	}{
		{"isolate", 5 * rounds, isolateRow(sys)},
		{"function", 5 * rounds, function},
		{"table", max(rounds/4, 10), tables[0]},
		{"table", max(rounds/4, 10), tables[1]},
		{"anew", rounds, anewRow(sys, other, "request that instantiates QuickJS anew", "/")},
		{"anew", max(rounds/4, 10), anewRow(sys, other, "…and gives it the same web interfaces", "/web")},
		{"python", rounds, pythonRow(sys)},
	} {
		rows, err := measure(ctx, group.rounds, group.steps)
		if err != nil {
			return fmt.Errorf("%s: %w", group.name, err)
		}
		r.Rows = append(r.Rows, rows...)
	}
	rows, err := neighbours(ctx, sys, rounds)
	if err != nil {
		return fmt.Errorf("neighbours: %w", err)
	}
	r.Rows = append(r.Rows, rows...)
	for _, f := range []func(context.Context, *harness.System) ([]figure, error){parallel, memory} {
		figures, err := f(ctx, sys)
		if err != nil {
			return err
		}
		r.Figures = append(r.Figures, figures...)
	}
	return nil
}

func (r *report) show() {
	fmt.Printf("%-50s %9s %9s %9s %9s %6s\n", "", "p50", "p99", "p50/floor", "p99/floor", "rounds")
	for _, r := range r.Rows {
		if r.Rounds == 0 {
			fmt.Printf("%-50s %s\n", r.Name, r.Note)
			continue
		}
		ratio50, ratio99 := "1", "1"
		if r.Floor != "" {
			ratio50, ratio99 = fmt.Sprintf("%.2f", r.Ratio50), fmt.Sprintf("%.2f", r.Ratio99)
		}
		fmt.Printf("%-50s %9s %9s %9s %9s %6d  %s\n", r.Name, round(r.P50), round(r.P99), ratio50, ratio99, r.Rounds, r.Note)
	}
	fmt.Println()
	for _, f := range r.Figures {
		fmt.Printf("%-50s %9.4g %-12s %s\n", f.Name, f.Value, f.Unit, f.Note)
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
