package jail

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// initPath is the sandbox-init that TestMain built.
var initPath string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make namespaces and cgroups: run them as root")
		return 1
	}
	if os.Getenv(crashEnv) != "" {
		return crashingDaemon()
	}
	// Where there is no compiler (the virtual machine) it is built before.
	if initPath = os.Getenv(initEnv); initPath != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "jail-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	initPath = filepath.Join(dir, "sandbox-init")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", initPath, "sandboxd/cmd/sandbox-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build sandbox-init: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// cgroup2 finds where cgroup v2 is mounted.
func cgroup2(t testing.TB) string {
	t.Helper()
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1]
		}
	}
	t.Fatal("no cgroup v2 is mounted")
	return ""
}

var testNumber atomic.Int64

// testConfig makes folders and a cgroup of the test's own, removed with it.
func testConfig(t testing.TB) Config {
	t.Helper()
	n := testNumber.Add(1)
	cg := filepath.Join(cgroup2(t), fmt.Sprintf("sandboxd-jail-test-%d-%d", os.Getpid(), n))
	if err := os.Mkdir(cg, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := group(cg).destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	level := slog.LevelWarn
	return Config{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), CgroupDir: cg, BestEffort: true,
		InitPath: initPath, UIDBase: 0x38010000,
		Log: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: level})),
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// testManager is closed with the test; closing must work.
func testManager(t testing.TB) *Manager {
	t.Helper()
	m, err := New(t.Context(), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func testJail(t testing.TB, m *Manager, tenant string) *Jail {
	t.Helper()
	j, err := m.Create(t.Context(), Spec{Tenant: tenant})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return j
}

// output is what run returns.
type output struct {
	stdout, stderr string
	exit           Exit
}

// run runs a command to its end.
func run(t testing.TB, j *Jail, spec ExecSpec) output {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	p, err := j.Exec(ctx, spec)
	if err != nil {
		t.Fatalf("exec %q: %v", spec.Argv, err)
	}
	return collect(t, ctx, p)
}

func collect(t testing.TB, ctx context.Context, p *Process) output {
	t.Helper()
	var o output
	var last uint64
	ended := false
	for ev, err := range p.Events(ctx, 0, true) {
		if err != nil {
			t.Fatalf("events of %q: %v", p.spec.Argv, err)
		}
		if ev.Seq != last+1 {
			t.Fatalf("event %d after %d", ev.Seq, last)
		}
		last = ev.Seq
		switch ev.Kind {
		case EventStdout:
			o.stdout += string(ev.Data)
		case EventStderr:
			o.stderr += string(ev.Data)
		case EventExit:
			o.exit, ended = *ev.Exit, true
		}
	}
	if !ended {
		t.Fatalf("events of %q end without an exit", p.spec.Argv)
	}
	return o
}

func sh(t testing.TB, j *Jail, script string) output {
	t.Helper()
	return run(t, j, ExecSpec{Argv: []string{"/bin/sh", "-c", script}})
}

// initEnv names a sandbox-init that is built already.
const initEnv = "JAIL_TEST_INIT"

// crashEnv makes this test binary the daemon that is killed; see crash_test.go.
const crashEnv = "JAIL_TEST_CRASH"
