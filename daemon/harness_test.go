package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/daemon/client"
	"sandboxd/policy"
)

const testPolicy = `version: 1
callers:
  - uid: 0
    tenants: ["t-*"]
profiles:
  all:
    isolate:
      languages: [js, ts, python, wasm]
      bindings:
        db: {type: db}
        kv: {type: kv}
        log: {type: log}
        search: {type: tools, methods: [find]}
      fetch: true
      limits: {wall: 20s, cpu: 500ms}
    jail:
      template: host
      limits: {wall: 30s, idle: 1m, lifetime: 10m}
  isolates:
    isolate:
      languages: [js]
  small:
    isolate:
      languages: [js]
      bindings:
        search: {type: tools, methods: [find]}
      record: all
      recordings: {count: 2, size: 64KiB, total: 1MiB, age: 1h}
  unrecorded:
    isolate:
      languages: [js]
      record: off
  short:
    jail:
      template: host
      limits: {idle: 1s, lifetime: 3s}
tenants:
  "t-*": {profile: all}
  t-isolates: {profile: isolates}
  t-short: {profile: short}
  t-small: {profile: small}
  t-off: {profile: unrecorded}
`

// initDir is where sandboxInit has built; "" before.
var initDir string

// sandboxInit builds the init once for all tests.
var sandboxInit = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sandboxd-daemon-test-")
	if err != nil {
		return "", err
	}
	initDir = dir
	path := filepath.Join(dir, "sandbox-init")
	cmd := exec.Command("go", "build", "-o", path, "sandboxd/cmd/sandbox-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build sandbox-init: %w: %s", err, out)
	}
	return path, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if initDir != "" {
		os.RemoveAll(initDir)
	}
	os.Exit(code)
}

// A testDaemon is a daemon in this process: real isolates, real jails (without
// a way out), a real audit log.
type testDaemon struct {
	*Daemon
	admin, api *client.Client
	closed     bool
}

func startDaemon(t *testing.T) *testDaemon {
	t.Helper()
	return startDaemonWith(t, testPolicy)
}

func startDaemonWith(t *testing.T, policyText string) *testDaemon {
	t.Helper()
	return startDaemonIn(t, t.TempDir(), policyText)
}

// startDaemonIn starts one on the state that another one may have left.
func startDaemonIn(t *testing.T, dir, policyText string, edit ...func(*Config)) *testDaemon {
	t.Helper()
	initPath, err := sandboxInit()
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Parse("test", []byte(policyText))
	if err != nil {
		t.Fatal(err)
	}
	guests, err := filepath.Abs("../build/guests")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Version: "test", Mode: ModeDev, StateDir: dir, RunDir: filepath.Join(dir, "run"), CgroupDir: testCgroup(t), BestEffort: true,
		Policy: p, PolicyName: "test", InitPath: initPath, GuestDir: guests, UIDBase: 0x39000000, CacheDir: filepath.Join(filepath.Dir(initPath), "cache"), InProcess: true,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, e := range edit {
		e(&cfg)
	}
	for _, name := range []string{"api", "admin"} {
		s, err := ListenUnix(filepath.Join(dir, name+".sock"), name == "admin")
		if err != nil {
			t.Fatal(err)
		}
		cfg.Sockets = append(cfg.Sockets, s)
	}
	d, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve() }()
	td := &testDaemon{Daemon: d, api: client.New(cfg.Sockets[0].Path), admin: client.New(cfg.Sockets[1].Path)}
	t.Cleanup(func() {
		td.stop(t)
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	for _, part := range []string{partIsolates, partJails} {
		if err := d.need(part); err != nil {
			t.Fatal(err) // make guests fetches the interpreter
		}
	}
	return td
}

// stop ends the daemon and wants the audit log whole afterwards.
func (d *testDaemon) stop(t *testing.T) {
	t.Helper()
	if d.closed {
		return
	}
	d.closed = true
	d.api.Close()
	d.admin.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := d.Close(ctx); err != nil && !errors.Is(err, audit.ErrClosed) {
		t.Errorf("close: %v", err)
	}
	if _, err := audit.Verify(d.state("audit")); err != nil {
		t.Errorf("the audit log: %v", err)
	}
}

// testCgroup is a fresh cgroup without processes.
func testCgroup(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(root, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(root, "sandboxd-daemon-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			left, err := filepath.Glob(dir + "/*/cgroup.procs")
			if err != nil {
				t.Error(err)
			}
			for _, f := range left {
				if b, err := os.ReadFile(f); err != nil || len(b) > 0 {
					t.Errorf("%s holds %q, %v", f, b, err)
				}
				if err := unix.Rmdir(filepath.Dir(f)); err != nil {
					t.Errorf("%s: %v", filepath.Dir(f), err)
				}
			}
			if err := unix.Rmdir(dir); err != nil {
				t.Errorf("%s: %v", dir, err)
			}
		})
		return dir
	}
	t.Fatal("cgroup v2 is mounted nowhere")
	return ""
}

// within bounds a test's calls.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// wantError wants an *api.Error with code and field.
func wantError(t *testing.T, err error, code, field string) *api.Error {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code || e.Field != field {
		t.Fatalf("got %v, want %s at %q", err, code, field)
	}
	return e
}
