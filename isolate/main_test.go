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
		case "isolate-worker":
			WorkerMain()
		}
	}
	dir, err := os.MkdirTemp("", "isolate-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testCache = dir
	code := m.Run()
	if shared != nil {
		shared.Close()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// testCache is the compilation cache of all pools of a test run.
var testCache string
