package main

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"sandboxd/tests/internal/harness"
)

// A figure is one measured number.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Note  string  `json:"note,omitempty"`
}

// loadTime is how long each number of clients calls.
const loadTime = 2 * time.Second

// parallel measures calls per second by parallel clients, each a tenant with a
// connection of its own, against those of one.
func parallel(ctx context.Context, sys *harness.System) ([]figure, error) {
	var out []figure
	for _, clients := range []int{1, 2, 4, 8} {
		rate, err := load(ctx, sys, clients, loadTime)
		if err != nil {
			return nil, err
		}
		f := figure{Name: fmt.Sprintf("fresh JavaScript calls, %d clients", clients), Value: rate, Unit: "calls/s"}
		if len(out) > 0 {
			f.Note = fmt.Sprintf("%.2f × one client", rate/out[0].Value)
		} else {
			f.Note = fmt.Sprintf("%d processors, which client, daemon and workers share", runtime.NumCPU())
		}
		out = append(out, f)
	}
	return out, nil
}

func load(ctx context.Context, sys *harness.System, clients int, d time.Duration) (float64, error) {
	var calls atomic.Int64
	errs := make(chan error, clients)
	began := time.Now()
	for i := range clients {
		go func() {
			c := harness.NewClient(sys.API.Socket)
			defer c.Close()
			run := increment(c, fmt.Sprintf("%s-%d", tenant, i), "js", trivial)
			for time.Since(began) < d {
				if err := run(ctx); err != nil {
					errs <- err
					return
				}
				calls.Add(1)
			}
			errs <- nil
		}()
	}
	for range clients {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	return float64(calls.Load()) / time.Since(began).Seconds(), nil
}
