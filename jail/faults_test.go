package jail

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFaultAtEachStep makes each step of a start fail, the daemon's and
// sandbox-init's: the error names it, nothing runs, and nothing is left.
func TestFaultAtEachStep(t *testing.T) {
	m := testManager(t)
	testJail(t, m, "warm-up").Destroy(t.Context(), "test")
	initSteps := stepsOf(t, "../cmd/sandbox-init", `\bat\("([a-z_ ]+)"|^\t\t\{"([a-z_ ]+)", func`)
	// Not of a start: what comes after it, and what only templates' jails have.
	for _, s := range []string{"ready", "receive", "request", "pipe"} {
		delete(initSteps, s)
	}
	for _, s := range treeSteps {
		initSteps[s] = true
	}
	if len(initSteps) < 20 {
		t.Fatalf("only %d steps of sandbox-init: %v", len(initSteps), initSteps)
	}
	for s := range initSteps {
		t.Run("sandbox-init/"+s, func(t *testing.T) {
			failing(t, m, s, func() (undo func()) {
				old := m.initFile
				m.initFile = faultyInit(t, s)
				return func() { m.initFile.Close(); m.initFile = old }
			})
		})
	}
	daemonSteps := stepsOf(t, ".", `^\t\t\{"([a-z' -]+)", (?:func|j\.|p\.|settle|layer)`)
	if len(daemonSteps) < 12 {
		t.Fatalf("only %d steps of the daemon: %v", len(daemonSteps), daemonSteps)
	}
	for s := range daemonSteps {
		t.Run("daemon/"+s, func(t *testing.T) {
			failing(t, m, s, func() (undo func()) {
				f := failAt(s)
				m.faults.Store(&f)
				return func() { m.faults.Store(nil) }
			})
		})
	}
	if o := sh(t, testJail(t, m, "after"), "echo fine"); o.stdout != "fine\n" {
		t.Errorf("after the faults: %+v", o)
	}
}

// treeSteps are those of sandbox-init whose names are in a table.
var treeSteps = []string{"layer", "files"}

func failing(t *testing.T, m *Manager, step string, set func() (undo func())) {
	before := count(t, m)
	undo := set()
	// With a network namespace of its own, so that loopback is a step too.
	j, err := m.Create(t.Context(), Spec{Tenant: "victim", Ephemeral: true})
	undo()
	var start *StartError
	if !errors.As(err, &start) || start.Step != step || !start.Jail {
		t.Errorf("got %v, %v; want an error that names %q", j, err, step)
	}
	if _, ok := m.Get("victim"); ok {
		t.Error("the jail is listed")
	}
	settled(t, m, before)
	for _, path := range []string{filepath.Join(m.jailsDir(), "victim"), filepath.Join(m.tenantsDir(), "victim"), string(m.jails.child("victim"))} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// stepsOf finds the steps' names in the sources: a step that is added is tested.
func stepsOf(t *testing.T, dir, pattern string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	re := regexp.MustCompile("(?m)" + pattern)
	steps := map[string]bool{}
	for _, f := range files {
		if bytes.HasSuffix([]byte(f), []byte("_test.go")) {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range re.FindAllSubmatch(text, -1) {
			for _, name := range m[1:] {
				if len(name) > 0 {
					steps[string(name)] = true
				}
			}
		}
	}
	return steps
}

var faultyBinary []byte

// faultyInit is a sandbox-init of the tests' build that fails at step.
func faultyInit(t *testing.T, step string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandbox-init")
	if faultyBinary == nil {
		build := exec.Command("go", "build", "-tags", "faults", "-trimpath", "-o", path, "sandboxd/cmd/sandbox-init")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var err error
		if faultyBinary, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, append(bytes.Clone(faultyBinary), "\x00fails at "+step...), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := sealedInit(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFaultsOfTheClone makes what the new process does before it executes
// sandbox-init fail, call by call.
func TestFaultsOfTheClone(t *testing.T) {
	m := testManager(t)
	testJail(t, m, "warm-up").Destroy(t.Context(), "test")
	for _, step := range m.initProgram(0).Steps() {
		if step == "keyring" || step == "signals" {
			continue // may fail
		}
		t.Run(step, func(t *testing.T) {
			before := count(t, m)
			m.breakInit = step
			_, err := m.Create(t.Context(), Spec{Tenant: "victim", Ephemeral: true})
			m.breakInit = ""
			var start *StartError
			if !errors.As(err, &start) || start.Step != step || start.Errno != unix.ENOSYS {
				t.Errorf("got %v, want an error that names %q", err, step)
			}
			settled(t, m, before)
		})
	}
}
