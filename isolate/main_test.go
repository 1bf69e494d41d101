package isolate

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A worker of a test is this test binary, started again in a role.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		if mode, ok := strings.CutPrefix(os.Args[1], "hostile-worker:"); ok {
			hostileWorker(mode)
		}
		switch os.Args[1] {
		case "isolate-worker-probe":
			workerProbe = probe
			WorkerMain()
		case "isolate-worker-collects":
			workerProbe = collectAlways
			WorkerMain()
		case "isolate-worker":
			WorkerMain()
		}
	}
	if err := os.MkdirAll(workersCache, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if shared != nil {
		shared.Close()
	}
	os.Exit(code)
}

// testCache is the cache of all pools, here and in the interpreters' own tests. It
// stays for the next run: to compile Python takes a minute with the race
// detector. Code is kept by its content, snapshots by the test binary's.
const (
	testCache    = "../build/cache/test"
	workersCache = testCache + "/workers"
)
