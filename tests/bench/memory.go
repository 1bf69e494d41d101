package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"sandboxd/tests/internal/harness"
)

const (
	memoryTenants = 1000
	memoryCalls   = 10_000
	memoryClients = 4
	// memorySettles is when what is measured has to be back: the runtime gives
	// memory back in the background.
	memorySettles = 5 * time.Second
)

// memory measures what the daemon and its children hold before and after many
// calls of many tenants.
func memory(ctx context.Context, sys *harness.System) ([]figure, error) {
	pid, err := sys.Pid(ctx)
	if err != nil {
		return nil, err
	}
	if err := calls(ctx, sys, 500); err != nil { // what any use at all makes
		return nil, err
	}
	before, err := resident(pid)
	if err != nil {
		return nil, err
	}
	if err := calls(ctx, sys, memoryCalls); err != nil {
		return nil, err
	}
	peak, err := resident(pid)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(memorySettles):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, err := resident(pid)
	if err != nil {
		return nil, err
	}
	return []figure{
		{"resident memory before", before / (1 << 20), "MiB", "daemon and children, shared pages once"},
		{fmt.Sprintf("right after %d calls of %d tenants", memoryCalls, memoryTenants), peak / (1 << 20), "MiB", fmt.Sprintf("%.2f × before", peak/before)},
		{fmt.Sprintf("%v later", memorySettles), after / (1 << 20), "MiB", fmt.Sprintf("%.2f × before", after/before)},
	}, nil
}

func calls(ctx context.Context, sys *harness.System, n int) error {
	var group sync.WaitGroup
	errs := make(chan error, memoryClients)
	for k := range memoryClients {
		group.Go(func() {
			c := harness.NewClient(sys.API.Socket)
			defer c.Close()
			for i := k; i < n; i += memoryClients {
				if err := increment(c, fmt.Sprintf("%s-m%d", tenant, i%memoryTenants), "js", trivial)(ctx); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// resident adds up the proportional set sizes of a process and its children.
func resident(pid int) (float64, error) {
	pids := []string{strconv.Itoa(pid)}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0, err
	}
	for _, t := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if err != nil {
			continue // the thread has gone
		}
		for _, child := range bytes.Fields(b) {
			pids = append(pids, string(child))
		}
	}
	sum := 0.0
	for _, p := range pids {
		b, err := os.ReadFile("/proc/" + p + "/smaps_rollup")
		if err != nil {
			return 0, err
		}
		for line := range bytes.Lines(b) {
			var kib float64
			if n, _ := fmt.Sscanf(string(line), "Pss: %f kB", &kib); n == 1 {
				sum += kib * 1024
			}
		}
	}
	return sum, nil
}
