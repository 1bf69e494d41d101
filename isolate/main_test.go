package isolate

import (
	"fmt"
	"os"
	"testing"
)

// A worker of a test is this test binary, started again.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "isolate-worker" {
		WorkerMain()
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
