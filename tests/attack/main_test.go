package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/kernel"
	"sandboxd/isolate"
	"sandboxd/jail"
	"sandboxd/netproxy"
	"sandboxd/tests/internal/leftovers"
)

const (
	uidBase = 0x36000000
	// Limits of the attacked jails: small, so that reaching them is quick.
	openFiles = 256
	pids      = 128
	disk      = 32 << 20
)

// The jails' manager, made once, and the probe's file.
var (
	manager *jail.Manager
	probe   string
)

func TestMain(m *testing.M) {
	// This binary is also the kernel's probe, the isolates' worker and the proxy.
	if n := len(kernel.HelperArgs); len(os.Args) > n && slices.Equal(os.Args[1:n+1], kernel.HelperArgs) {
		os.Exit(kernel.Main(os.Args[n+1:]))
	}
	switch strings.Join(os.Args[1:], " ") {
	case "role isolate-worker":
		isolate.WorkerMain()
		return
	case "role netproxy":
		netproxy.Main()
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	before, err := leftovers.Take()
	if err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "sandboxd-attack-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if err == nil {
			err = nothingLeft(before)
		}
	}()
	defer os.RemoveAll(dir)
	// Tenants come through here with their own ids.
	if err := os.Chmod(dir, 0o711); err != nil {
		return 1, err
	}
	initPath, err := programs(ctx, dir)
	if err != nil {
		return 1, err
	}
	features := kernel.Probe(ctx, "/proc/self/exe")
	cgroup, leave, err := enterCgroup(features)
	if err != nil {
		return 1, err
	}
	defer func() {
		if leaveErr := leave(); err == nil {
			err = leaveErr
		}
	}()
	manager, err = jail.New(ctx, jail.Config{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), CgroupDir: cgroup, BestEffort: true,
		InitPath: initPath, UIDBase: uidBase, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return 1, err
	}
	code = m.Run()
	return code, manager.Close(ctx)
}

// enterCgroup makes a group for the jails and moves this process below it, as a
// unit with Delegate=yes and DelegateSubgroup= has its daemon.
func enterCgroup(f kernel.Features) (dir string, leave func() error, err error) {
	dir = filepath.Join(f.CgroupV2Dir, fmt.Sprintf("sandboxd-attack-%d", os.Getpid()))
	own := filepath.Join(dir, "supervisor")
	if err := os.MkdirAll(own, 0o755); err != nil {
		return "", nil, err
	}
	move := func(to string) error {
		return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte("0"), 0)
	}
	leave = func() error {
		return errors.Join(move(f.CgroupOwnDir), unix.Rmdir(own), unix.Rmdir(dir))
	}
	if err := move(own); err != nil {
		return "", nil, errors.Join(err, leave())
	}
	return dir, leave, nil
}

// programs builds sandbox-init and the probe, or takes them from the folder that
// SANDBOXD_ATTACK_BIN names, where there is no Go (a virtual machine).
func programs(ctx context.Context, dir string) (initPath string, err error) {
	if bin := os.Getenv("SANDBOXD_ATTACK_BIN"); bin != "" {
		probe = filepath.Join(bin, "probe")
		return filepath.Join(bin, "sandbox-init"), nil
	}
	probe, initPath = filepath.Join(dir, "probe"), filepath.Join(dir, "sandbox-init")
	for path, pkg := range map[string]string{initPath: "sandboxd/cmd/sandbox-init", probe: "sandboxd/tests/attack/probe"} {
		build := exec.CommandContext(ctx, "go", "build", "-o", path, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return initPath, nil
}

// nothingLeft compares the machine with what it was.
func nothingLeft(before leftovers.Inventory) error {
	left, err := leftovers.Settle(before, 20*time.Second)
	if err != nil {
		return err
	}
	var ours []string
	for _, l := range left {
		// Others work on this machine too; what is ours carries our name.
		if strings.Contains(l, "attack") {
			ours = append(ours, l)
		}
	}
	if len(ours) > 0 {
		return fmt.Errorf("left behind: %q", ours)
	}
	return nil
}

// newJail makes a jail without a network, with the probe in its workspace; it
// ends with the test.
func newJail(t *testing.T, tenant string) *jail.Jail {
	t.Helper()
	return newJailOn(t, tenant, nil)
}

func newJailOn(t *testing.T, tenant string, network *os.File) *jail.Jail {
	t.Helper()
	j, err := manager.Create(t.Context(), jail.Spec{
		Tenant: tenant, Template: "host", Ephemeral: true, CABundle: []byte("# no certificate\n"), Resolvers: []string{"192.0.2.53"},
		NetNS:  network,
		Limits: jail.Limits{OpenFiles: openFiles, Pids: pids, Disk: disk},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Destroy(context.WithoutCancel(t.Context()), "destroyed"); err != nil {
			t.Errorf("destroy %s: %v", tenant, err)
		}
	})
	file, err := os.Open(probe)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := j.WriteFile(t.Context(), "/workspace/probe", file, 0o755, 64<<20); err != nil {
		t.Fatal(err)
	}
	return j
}

// output runs the probe and returns what it printed.
func output(t *testing.T, j *jail.Jail, args ...string) []byte {
	t.Helper()
	p, err := j.Exec(t.Context(), jail.ExecSpec{
		Argv: append([]string{"/workspace/probe"}, args...), Timeout: 5 * time.Minute, Output: 16 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	for e, err := range p.Events(t.Context(), 0, false) {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Kind == jail.EventStdout:
			out.Write(e.Data)
		case e.Kind == jail.EventStderr:
			errs.Write(e.Data)
		}
	}
	if exit.Code != 0 {
		t.Fatalf("probe %q ended with %+v\n%s%s", args, exit, out.Bytes(), errs.Bytes())
	}
	return out.Bytes()
}

// decode is output as JSON.
func decode[T any](t *testing.T, j *jail.Jail, args ...string) T {
	t.Helper()
	var v T
	out := output(t, j, args...)
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatalf("probe %q printed %q: %v", args, out, err)
	}
	return v
}
