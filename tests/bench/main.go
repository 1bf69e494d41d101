package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"sandboxd/tests/internal/harness"
)

func main() {
	bin := flag.String("bin", "", "folder with sandboxd and sandboxctl; by default the module's build/")
	rounds := flag.Int("n", 300, "rounds of each row")
	asJSON := flag.Bool("json", false, "print JSON")
	flag.Parse()
	if *bin != "" {
		if err := os.Setenv("SANDBOXD_BIN", *bin); err != nil {
			fail(err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rows, err := run(ctx, *rounds)
	if err != nil {
		stop()
		fail(err)
	}
	if *asJSON {
		err = json.NewEncoder(os.Stdout).Encode(rows)
	} else {
		show(rows)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

func run(ctx context.Context, rounds int) (_ []row, err error) {
	sys, err := harness.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := sys.Close(context.WithoutCancel(ctx)); err == nil {
			err = cerr
		}
	}()
	isolate, err := measure(ctx, rounds, isolateRow(sys))
	if err != nil {
		return nil, fmt.Errorf("isolate: %w", err)
	}
	python, err := measure(ctx, rounds, pythonRow(sys))
	if err != nil {
		return nil, fmt.Errorf("python: %w", err)
	}
	// A jail costs some hundred times as much, and its teardown goes on in the
	// kernel for a while.
	jail, err := measure(ctx, max(rounds/3, 10), jailRow(sys))
	if err != nil {
		return nil, fmt.Errorf("jail: %w", err)
	}
	return slices.Concat(isolate, python, jail), nil
}

func show(rows []row) {
	fmt.Printf("%-44s %9s %9s %9s %9s %6s\n", "", "p50", "p99", "p50/floor", "p99/floor", "rounds")
	for _, r := range rows {
		ratio50, ratio99 := "1", "1"
		if r.Floor != "" {
			ratio50, ratio99 = fmt.Sprintf("%.1f", r.Ratio50), fmt.Sprintf("%.1f", r.Ratio99)
		}
		fmt.Printf("%-44s %9s %9s %9s %9s %6d\n", r.Name, round(r.P50), round(r.P99), ratio50, ratio99, r.Rounds)
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
