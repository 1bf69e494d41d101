package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/tests/internal/harness"
)

// cycles is how often a jail is made, used and destroyed to see whether anything
// grows.
const cycles = 10_000

// jailFigures are what jails cost in number.
func jailFigures(ctx context.Context, sys *harness.System, bin string, rounds int) ([]figure, error) {
	out, err := idleJails(ctx, sys, bin)
	if err != nil {
		return nil, err
	}
	var first float64
	for _, clients := range []int{1, 2, 4, 8} {
		rate, err := churn(ctx, sys, bin, clients, rounds)
		if err != nil {
			return nil, err
		}
		f := figure{Name: fmt.Sprintf("jails made, used and destroyed, %d clients", clients), Value: rate, Unit: "a second", Note: "each until nothing of it is left"}
		if first == 0 {
			first = rate
		} else {
			f.Note = fmt.Sprintf("%.2f × one client", rate/first)
		}
		out = append(out, f)
	}
	growth, err := growth(ctx, sys, bin, min(cycles, 40*rounds))
	return append(out, growth...), err
}

// churn makes, uses and destroys n jails by parallel clients, each a tenant.
func churn(ctx context.Context, sys *harness.System, bin string, clients, n int) (float64, error) {
	var left atomic.Int64
	left.Store(int64(n))
	errs := make(chan error, clients)
	began := time.Now()
	for i := range clients {
		go func() {
			c := harness.NewClient(sys.API.Socket)
			defer c.Close()
			path := jailPath(fmt.Sprintf("%s-churn-%d", tenant, i))
			var err error
			for err == nil && left.Add(-1) >= 0 {
				err = errors.Join(trueIn(ctx, c, path, bin), destroy(ctx, c, path))
			}
			errs <- err
		}()
	}
	var all error
	for range clients {
		all = errors.Join(all, <-errs)
	}
	return float64(n) / time.Since(began).Seconds(), all
}

// growth compares what the daemon and the machine hold before and after.
func growth(ctx context.Context, sys *harness.System, bin string, n int) ([]figure, error) {
	if _, err := churn(ctx, sys, bin, 4, 200); err != nil { // what any use at all makes
		return nil, err
	}
	before, err := held(ctx, sys)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := churn(ctx, sys, bin, 4, n); err != nil {
		return nil, err
	}
	rate := float64(n) / time.Since(began).Seconds()
	after, err := held(ctx, sys)
	if err != nil {
		return nil, err
	}
	out := []figure{{Name: fmt.Sprintf("…%d of them, 4 clients", n), Value: rate, Unit: "a second"}}
	for _, k := range heldKinds {
		out = append(out, figure{Name: "after them, more " + k, Value: after[k] - before[k], Unit: "", Note: fmt.Sprintf("%.4g before", before[k])})
	}
	return out, nil
}

var heldKinds = []string{"memory (MiB)", "threads", "descriptors", "mounts", "cgroups", "processes", "network namespaces", "files of the state"}

// held counts what could grow, when what ends in the background has ended.
func held(ctx context.Context, sys *harness.System) (map[string]float64, error) {
	if err := sparesReady(ctx, sys); err != nil {
		return nil, err
	}
	pid, err := sys.Pid(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(memorySettles):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	memory, err := resident(pid)
	if err != nil {
		return nil, err
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	h := map[string]float64{"memory (MiB)": memory / (1 << 20)}
	for kind, dir := range map[string]string{"threads": "task", "descriptors": "fd"} {
		entries, err := os.ReadDir(filepath.Join(proc, dir))
		if err != nil {
			return nil, err
		}
		h[kind] = float64(len(entries))
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return nil, err
	}
	h["mounts"] = float64(strings.Count(string(mounts), "\n"))
	h["cgroups"] = folders("/sys/fs/cgroup", func(name string, dir bool) bool { return dir })
	h["files of the state"] = folders(sys.State, func(name string, dir bool) bool { return true })
	h["processes"], h["network namespaces"] = processes()
	return h, nil
}

func folders(root string, want func(name string, dir bool) bool) float64 {
	n := 0.0
	// What vanishes while we walk is not there.
	_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && want(d.Name(), d.IsDir()) {
			n++
		}
		return nil
	})
	return n
}

// processes counts those of this machine and the network namespaces they keep.
func processes() (n, namespaces float64) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return -1, -1
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if ns, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net")); err == nil {
			n++
			seen[ns] = true
		}
	}
	return n, float64(len(seen))
}

// idleCount is how many frozen jails the memory of one is an average of.
const idleCount = 40

// idleJails measures what a frozen jail costs that has run one command.
func idleJails(ctx context.Context, sys *harness.System, bin string) ([]figure, error) {
	var figures []figure
	var own, kernel float64
	var group sync.WaitGroup
	defer group.Wait()
	before, err := available()
	if err != nil {
		return nil, err
	}
	inits := initPids()
	for i := range idleCount {
		path := jailPath(fmt.Sprintf("%s-idle-%d", tenant, i))
		if err := trueIn(ctx, sys.API, path, bin); err != nil {
			return nil, err
		}
		if _, err := call(ctx, sys.API, "POST", path+"/freeze", []byte("{}")); err != nil {
			return nil, err
		}
	}
	if err := sparesReady(ctx, sys); err != nil {
		return nil, err
	}
	after, err := available()
	if err != nil {
		return nil, err
	}
	n := 0.0
	for pid := range initPids() {
		if inits[pid] {
			continue
		}
		v, err := pss(pid)
		if err != nil {
			return nil, err
		}
		own += v
		n++
	}
	kernel = (before-after)/idleCount - own/n
	figures = append(figures,
		figure{Name: "sandbox-init of a frozen jail, proportional", Value: own / n / (1 << 20), Unit: "MiB", Note: fmt.Sprintf("%.0f of them", n)},
		figure{Name: "host memory of a frozen jail beside it", Value: kernel / (1 << 20), Unit: "MiB", Note: "from MemAvailable: all others on this machine count too"})
	for i := range idleCount {
		if err := destroy(ctx, sys.API, jailPath(fmt.Sprintf("%s-idle-%d", tenant, i))); err != nil {
			return nil, err
		}
	}
	return figures, nil
}

// initPids are the sandbox-inits of this machine.
func initPids() map[string]bool {
	out := map[string]bool{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err == nil && strings.Contains(exe, "memfd:sandbox-init") {
			out[e.Name()] = true
		}
	}
	return out
}

// available is MemAvailable, in bytes.
func available() (float64, error) {
	unix.Sync()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %f kB", &kib); n == 1 {
			return kib * 1024, nil
		}
	}
	return 0, errors.New("no MemAvailable")
}
