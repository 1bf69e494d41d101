package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLifecycle(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	if again, err := m.Create(t.Context(), Spec{Tenant: "alice"}); again != j || !errors.Is(err, ErrExists) {
		t.Fatalf("second create: %v, %v", again, err)
	}
	if got, ok := m.Get("alice"); !ok || got != j || len(m.List()) != 1 {
		t.Fatal("the jail is not listed")
	}
	if s := j.Info(); s.State != StateRunning || s.Cause != "" || s.Limits.Pids != defaultPids {
		t.Fatalf("info %+v", s)
	}
	if err := j.Destroy(t.Context(), "idle"); err != nil {
		t.Fatal(err)
	}
	if err := j.Destroy(t.Context(), "other"); err != nil {
		t.Fatal("not idempotent:", err)
	}
	<-j.Done()
	if s := j.Info(); s.State != StateGone || s.Cause != "idle" {
		t.Fatalf("info after the end %+v", s)
	}
	if _, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"true"}}); !errors.Is(err, ErrGone) {
		t.Fatalf("exec after the end: %v", err)
	}
	if _, err := j.ReadFile(t.Context(), "/etc/passwd", 1<<20); !errors.Is(err, ErrGone) {
		t.Fatalf("read after the end: %v", err)
	}
	if _, ok := m.Get("alice"); ok {
		t.Fatal("the jail is still listed")
	}
}

func TestForget(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "echo mine > /workspace/f; mkdir -p /home/user/d")
	if err := m.Forget("alice"); !errors.Is(err, ErrExists) {
		t.Fatalf("forget with a jail: %v", err)
	}
	if err := j.Destroy(t.Context(), "idle"); err != nil {
		t.Fatal(err)
	}
	j = testJail(t, m, "alice")
	if o := sh(t, j, "cat /workspace/f"); o.stdout != "mine\n" {
		t.Fatalf("a persistent workspace after the jail's end: %+v", o)
	}
	if err := j.Destroy(t.Context(), CauseDestroyed); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Forget("alice"); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(m.tenantsDir()); err != nil || len(left) != 0 {
		t.Fatalf("left of the tenant: %v, %v", left, err)
	}
	var spec *SpecError
	if err := m.Forget("../x"); !errors.As(err, &spec) {
		t.Fatalf("a name that is none: %v", err)
	}
}

// counts are what must not grow.
type counts struct{ fds, goroutines, mounts, groups int }

func count(t testing.TB, m *Manager) counts {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	groups, err := os.ReadDir(string(m.jails))
	if err != nil {
		t.Fatal(err)
	}
	c := counts{len(fds), runtime.NumGoroutine(), strings.Count(string(mounts), "\n"), 0}
	for _, g := range groups {
		if g.IsDir() {
			c.groups++
		}
	}
	return c
}

// settled waits until the counts are at most want; goroutines and threads end a
// moment after what they did.
func settled(t testing.TB, m *Manager, want counts) {
	t.Helper()
	var c counts
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		c = count(t, m)
		if c.fds <= want.fds && c.goroutines <= want.goroutines && c.mounts <= want.mounts && c.groups <= want.groups {
			return
		}
	}
	buf := make([]byte, 1<<20)
	t.Fatalf("left behind: %+v, before %+v\n%s", c, want, buf[:runtime.Stack(buf, true)])
}

func TestNothingIsLeft(t *testing.T) {
	m := testManager(t)
	testJail(t, m, "warm-up").Destroy(t.Context(), "test")
	before := count(t, m)
	for round := range 3 {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				tenant := fmt.Sprintf("t%d-%d", round, i)
				j, err := m.Create(t.Context(), Spec{Tenant: tenant, Ephemeral: true})
				if err != nil {
					t.Error(err)
					return
				}
				// Something that runs, something that has ended, something that was
				// left behind, and a full disk's worth of odd names.
				if _, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sleep", "1000"}, Stdin: true}); err != nil {
					t.Error(err)
				}
				sh(t, j, "mkdir -p a/b; ln -s / a/b/root; mkfifo a/f; (setsid sleep 1000 &) ; seq 20000")
				if err := j.Destroy(t.Context(), "test"); err != nil {
					t.Error(err)
				}
				if _, err := os.Lstat(filepath.Join(m.tenantsDir(), tenant)); !os.IsNotExist(err) {
					t.Errorf("workspace of %s: %v", tenant, err)
				}
				if _, err := os.Lstat(j.runDir()); !os.IsNotExist(err) {
					t.Errorf("run folder of %s: %v", tenant, err)
				}
			})
		}
		wg.Wait()
	}
	settled(t, m, before)
}

func TestWorkspaceIsKept(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "echo mine > /workspace/f; echo home > ~/h; echo tmp > /tmp/t")
	uid := j.uid
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	testJail(t, m, "bob")
	j = testJail(t, m, "alice")
	if o := sh(t, j, "cat /workspace/f ~/h; ls /tmp"); o.stdout != "mine\nhome\n" || j.uid != uid {
		t.Fatalf("%+v, uid %d was %d", o, j.uid, uid)
	}
	if err := m.RemoveWorkspace(t.Context(), "alice"); !errors.Is(err, ErrExists) {
		t.Fatalf("removed under a jail: %v", err)
	}
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveWorkspace(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	j = testJail(t, m, "alice")
	if o := sh(t, j, "ls -A /workspace /home/user"); o.stdout != "/home/user:\n\n/workspace:\n" {
		t.Fatalf("%q", o.stdout)
	}
}

func TestUIDRangesAreDisjointAndSurvive(t *testing.T) {
	dir := t.TempDir()
	u, err := loadUIDs(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]string{}
	for i := range 50 {
		tenant := fmt.Sprintf("t%d", i)
		uid, err := u.claim(tenant)
		if err != nil {
			t.Fatal(err)
		}
		if other := seen[uid]; other != "" || uid < 1<<20 || (uid-1<<20)%uidRange != 0 {
			t.Fatalf("%s has %d, which is %q's", tenant, uid, other)
		}
		seen[uid] = tenant
	}
	again, err := loadUIDs(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for uid, tenant := range seen {
		if got, err := again.claim(tenant); err != nil || got != uid {
			t.Fatalf("%s: %d, %v; was %d", tenant, got, err, uid)
		}
	}
	if uid, err := again.claim("new"); err != nil || seen[uid] != "" {
		t.Fatalf("new tenant: %d, %v", uid, err)
	}
	for _, bad := range []string{"x", "-1", "99999999999", "65535"} {
		dir := t.TempDir()
		os.Mkdir(filepath.Join(dir, "a"), 0o700)
		os.Symlink(bad, filepath.Join(dir, "a", "uid"))
		if _, err := loadUIDs(dir, 1<<20); err == nil {
			t.Errorf("range %q was taken", bad)
		}
	}
}

func TestBadSpecs(t *testing.T) {
	m := testManager(t)
	before := count(t, m)
	for field, spec := range map[string]Spec{
		"tenant":            {Tenant: "../x"},
		"template":          {Tenant: "a", Template: "debian"},
		"limits.memory":     {Tenant: "a", Limits: Limits{Memory: -1}},
		"limits.cpus":       {Tenant: "a", Limits: Limits{CPUs: -1}},
		"limits.pids":       {Tenant: "a", Limits: Limits{Pids: 1}},
		"limits.open_files": {Tenant: "a", Limits: Limits{OpenFiles: 1 << 30}},
		"limits.disk":       {Tenant: "a", Limits: Limits{Disk: 1}},
		"resolvers":         {Tenant: "a", Resolvers: []string{"1.1.1.1\nnameserver 2.2.2.2"}},
		"env":               {Tenant: "a", Env: map[string]string{"A=B": "x"}},
		"env.A":             {Tenant: "a", Env: map[string]string{"A": "x\x00"}},
	} {
		_, err := m.Create(t.Context(), spec)
		var se *SpecError
		if !errors.As(err, &se) || se.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if len(m.List()) != 0 {
		t.Fatal("a refused jail is listed")
	}
	settled(t, m, before)
	j := testJail(t, m, "a")
	for field, spec := range map[string]ExecSpec{
		"argv":    {},
		"exec_id": {ID: "a/b", Argv: []string{"true"}},
		"cwd":     {Cwd: "x", Argv: []string{"true"}},
		"timeout": {Timeout: -1, Argv: []string{"true"}},
		"output":  {Output: -1, Argv: []string{"true"}},
		"env":     {Env: map[string]string{"": "x"}, Argv: []string{"true"}},
	} {
		_, err := j.Exec(t.Context(), spec)
		var se *SpecError
		if !errors.As(err, &se) || se.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if n := len(j.Processes()); n != 0 {
		t.Fatalf("%d processes of refused commands", n)
	}
}

func TestEndOfInitEndsTheJail(t *testing.T) {
	m := testManager(t)
	before := count(t, m)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	j.init.kill()
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Code != -1 || exit.Signal != "SIGKILL" || exit.Cause != "jail_"+CauseInitDied {
		t.Fatalf("%+v, %v", exit, err)
	}
	<-j.Done()
	if got := j.Info(); got.Cause != CauseInitDied {
		t.Fatalf("%+v", got)
	}
	settled(t, m, before)
}

func TestFreeze(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := j.Info().State; s != StateFrozen {
		t.Fatal(s)
	}
	if b, err := j.cgroup.read("cgroup.events"); err != nil || !strings.Contains(string(b), "frozen 1") {
		t.Fatalf("%s %v", b, err)
	}
	// A command thaws it.
	if o := sh(t, j, "echo awake"); o.stdout != "awake\n" {
		t.Fatalf("%+v", o)
	}
	if s := j.Info().State; s != StateRunning {
		t.Fatal(s)
	}
	if err := j.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal("a frozen jail cannot be destroyed:", err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Cause != "jail_test" {
		t.Fatalf("%+v, %v", exit, err)
	}
}

// TestFaults makes steps of the start fail: nothing runs and nothing is left.
func TestFaults(t *testing.T) {
	m := testManager(t)
	testJail(t, m, "warm-up").Destroy(t.Context(), "test")
	create := func() error {
		_, err := m.Create(t.Context(), Spec{Tenant: "victim", Ephemeral: true})
		return err
	}
	for name, fault := range map[string]struct {
		set   func() (undo func())
		check func(error) bool
	}{
		"self-check": {
			func() func() { m.host.filters++; return func() { m.host.filters-- } },
			func(err error) bool { var e *SelfCheckError; return errors.As(err, &e) && e.What == "Seccomp_filters" },
		},
		"self-check of mounts": {
			func() func() {
				old := m.host.opt
				m.host.opt, m.prepare.Opt = false, false
				devices["missing"] = 1
				return func() { m.host.opt, m.prepare.Opt = old, old; delete(devices, "missing") }
			},
			func(err error) bool { var e *SelfCheckError; return errors.As(err, &e) && e.What == "mounts" },
		},
		"a mask that is not there": {
			func() func() {
				old := m.prepare.MaskFiles
				m.prepare.MaskFiles = append([]string{"nothing"}, old...)
				return func() { m.prepare.MaskFiles = old }
			},
			func(err error) bool {
				var e *StartError
				return errors.As(err, &e) && e.Step == "proc" && e.Errno == unix.ENOENT
			},
		},
		"a filter that is none": {
			func() func() {
				old := m.prepare.InitFilter
				m.prepare.InitFilter = []byte{1}
				return func() { m.prepare.InitFilter = old }
			},
			func(err error) bool { var e *StartError; return errors.As(err, &e) && e.Step == "filters" },
		},
		"a program that is no program": {
			func() func() { old := m.initFile; m.initFile = m.null; return func() { m.initFile = old } },
			func(err error) bool {
				var e *StartError
				return errors.As(err, &e) && e.Step == "exec" && e.Errno == unix.EACCES
			},
		},
		"a program that ends at once": {
			func() func() {
				old := m.initFile
				f, err := sealedInit("/usr/bin/true")
				if err != nil {
					t.Fatal(err)
				}
				m.initFile = f
				return func() { f.Close(); m.initFile = old }
			},
			func(err error) bool { var e *StartError; return errors.As(err, &e) },
		},
		"a cgroup that cannot be made": {
			func() func() { old := m.jails; m.jails = "/proc"; return func() { m.jails = old } },
			func(err error) bool { return err != nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := count(t, m)
			undo := fault.set()
			err := create()
			undo()
			if !fault.check(err) {
				t.Errorf("got %v", err)
			}
			if _, ok := m.Get("victim"); ok {
				t.Error("the jail is listed")
			}
			settled(t, m, before)
		})
	}
	if err := create(); err != nil {
		t.Fatal("after the faults:", err)
	}
}

func TestCancelledCreate(t *testing.T) {
	m := testManager(t)
	before := count(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Create(ctx, Spec{Tenant: "alice", Ephemeral: true}); err == nil {
		t.Fatal("created with a context that is over")
	}
	settled(t, m, before)
}

// TestCloseDuringCreate: whatever the moment, one of both wins and nothing is
// left.
func TestCloseDuringCreate(t *testing.T) {
	for i := range 6 {
		m, err := New(t.Context(), testConfig(t))
		if err != nil {
			t.Fatal(err)
		}
		created := make(chan error, 1)
		go func() {
			_, err := m.Create(context.Background(), Spec{Tenant: "alice", Ephemeral: true})
			created <- err
		}()
		for len(m.List()) == 0 {
			runtime.Gosched()
		}
		time.Sleep(time.Duration(i) * time.Millisecond) // another moment each time
		if err := m.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		<-created
		if len(m.List()) != 0 {
			t.Fatal("a jail is left")
		}
		if _, err := os.Lstat(filepath.Join(m.cfg.RunDir, "jails", "alice")); !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

func TestUnsupportedHosts(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"cgroup v2": func(c *Config) { c.CgroupDir = "/nothing" },
		"cgroup v2 controllers": func(c *Config) {
			// A group whose parent passes nothing on has no controllers, here and
			// everywhere.
			c.CgroupDir += "/inner"
			if err := os.Mkdir(c.CgroupDir, 0o755); err != nil {
				t.Fatal(err)
			}
			c.BestEffort = false
		},
	} {
		cfg := testConfig(t)
		change(&cfg)
		m, err := New(t.Context(), cfg)
		var lacks *UnsupportedError
		if m != nil || !errors.As(err, &lacks) || lacks.Feature != name || lacks.Remedy == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg := testConfig(t)
	cfg.InitPath = "/nothing"
	if _, err := New(t.Context(), cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no sandbox-init: %v", err)
	}
	cfg = testConfig(t)
	cfg.UIDBase = 0
	if _, err := New(t.Context(), cfg); err == nil {
		t.Error("the host's own uids were taken")
	}
}
