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
)

// awaitSpares waits until n spares are ready.
func awaitSpares(t testing.TB, m *Manager, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p := m.pool
	defer context.AfterFunc(ctx, p.cond.Broadcast)()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.ready) < n {
		if ctx.Err() != nil {
			t.Fatalf("%d of %d spares: %+v", len(p.ready), n, p.count)
		}
		p.cond.Wait()
	}
}

func TestSpares(t *testing.T) {
	m := testManager(t)
	if err := m.KeepSpares(2, nil); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range 4 {
		awaitSpares(t, m, 2)
		s := m.TakeSpare()
		if s == nil {
			t.Fatal("none of two spares")
		}
		if name := filepath.Base(string(s.place.cgroup)); seen[name] {
			t.Errorf("%s was given out twice", name)
		} else {
			seen[name] = true
		}
		tenant := fmt.Sprintf("tenant-%d", i)
		j, err := m.Create(t.Context(), Spec{Tenant: tenant, Spare: s, Ephemeral: true, Limits: Limits{OpenFiles: 77}})
		if err != nil {
			t.Fatal(err)
		}
		o := sh(t, j, "hostname; id -u; ulimit -n; ls -A /tmp /workspace /home/user; cat /etc/hosts; cat /proc/self/cgroup; grep -c . /etc/ssl/certs/ca-certificates.crt")
		for _, want := range []string{tenant + "\n1000\n77\n", "127.0.0.1 " + tenant + "\n"} {
			if !strings.Contains(o.stdout, want) {
				t.Errorf("%q is not in %q", want, o.stdout)
			}
		}
		if o.exit.Code != 0 {
			t.Errorf("%+v", o)
		}
		if err := j.Destroy(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	if c := m.Spares(); c.Size != 2 || c.Taken != 4 || c.Missed != 0 || c.Failed != 0 {
		t.Errorf("%+v", c)
	}
}

// TestSpareThatDies is not given to a tenant, and is replaced.
func TestSpareThatDies(t *testing.T) {
	m := testManager(t)
	if err := m.KeepSpares(1, nil); err != nil {
		t.Fatal(err)
	}
	awaitSpares(t, m, 1)
	m.pool.mu.Lock()
	s := m.pool.ready[0]
	m.pool.mu.Unlock()
	s.place.init.kill()
	<-s.place.init.gone
	m.pool.mu.Lock()
	for m.pool.count.Died == 0 {
		m.pool.cond.Wait()
	}
	m.pool.mu.Unlock()
	awaitSpares(t, m, 1)
	if c := m.Spares(); c.Made != 2 || c.Died != 1 {
		t.Errorf("%+v", c)
	}
}

type testNetwork struct{ closed chan struct{} }

func (n testNetwork) NetNS() *os.File     { return nil }
func (n testNetwork) Resolvers() []string { return []string{"192.0.2.1"} }
func (n testNetwork) CABundle() []byte    { return []byte("a certificate\n") }
func (n testNetwork) Close() error        { close(n.closed); return nil }

// TestSpareThatIsNotUsed: Create uses a spare up, whatever comes of it.
func TestSpareThatIsNotUsed(t *testing.T) {
	m := testManager(t)
	made := make(chan testNetwork, 9)
	if err := m.KeepSpares(1, func(context.Context) (Network, error) {
		n := testNetwork{make(chan struct{})}
		made <- n
		return n, nil
	}); err != nil {
		t.Fatal(err)
	}
	testJail(t, m, "there")
	for name, c := range map[string]struct {
		tenant, fault string
	}{"exists": {tenant: "there"}, "early": {"victim", "uid range"}, "late": {"victim", "self-check"}} {
		awaitSpares(t, m, 1)
		s := m.TakeSpare()
		f := failAt(c.fault)
		m.faults.Store(&f)
		_, err := m.Create(t.Context(), Spec{Tenant: c.tenant, Spare: s, Ephemeral: true})
		m.faults.Store(nil)
		if err == nil {
			t.Fatalf("%s: created", name)
		}
		<-(<-made).closed
		for _, dir := range []string{string(s.place.cgroup), filepath.Join(m.jailsDir(), "victim"), filepath.Join(m.tenantsDir(), "victim")} {
			if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %s is there: %v", name, dir, err)
			}
		}
	}
	awaitSpares(t, m, 1)
	j, err := m.Create(t.Context(), Spec{Tenant: "user", Spare: m.TakeSpare(), Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	if o := sh(t, j, "cat /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt"); o.stdout != "nameserver 192.0.2.1\na certificate\n" {
		t.Errorf("%+v", o)
	}
}

// failAt makes one step fail.
func failAt(step string) func(string) error {
	return func(s string) error {
		if s == step {
			return errors.New("on purpose")
		}
		return nil
	}
}

// TestSpareFailures: a pool that cannot be filled tries again later, and later.
func TestSpareFailures(t *testing.T) {
	m := testManager(t)
	before := count(t, m)
	tries := make(chan struct{}, 99)
	if err := m.KeepSpares(1, func(context.Context) (Network, error) {
		tries <- struct{}{}
		return nil, errors.New("no network today")
	}); err != nil {
		t.Fatal(err)
	}
	<-tries
	<-tries
	if m.TakeSpare() != nil {
		t.Error("a spare without a network")
	}
	if c := m.Spares(); c.Failed == 0 || c.LastError == "" || c.Missed != 1 {
		t.Errorf("%+v", c)
	}
	if err := m.pool.close(); err != nil {
		t.Fatal(err)
	}
	settled(t, m, before)
}

// TestNoGrowth: jails that come and go leave neither processes nor descriptors,
// goroutines, threads, mounts, groups, folders or memory.
func TestNoGrowth(t *testing.T) {
	m := testManager(t)
	if err := m.KeepSpares(2, nil); err != nil {
		t.Fatal(err)
	}
	churn := func(from, to int) {
		var wg sync.WaitGroup
		for client := range 2 {
			wg.Go(func() {
				for i := from; i < to; i++ {
					j, err := m.Create(t.Context(), Spec{Tenant: fmt.Sprintf("t%d-%d", client, i), Spare: m.TakeSpare(), Ephemeral: true})
					if err != nil {
						t.Error(err)
						return
					}
					if o := run(t, j, ExecSpec{Argv: []string{"/usr/bin/true"}}); o.exit.Code != 0 {
						t.Errorf("%+v", o)
					}
					if err := j.Destroy(t.Context(), "test"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		awaitSpares(t, m, 2)
	}
	threads := func() int {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	churn(0, 20) // what any use at all makes
	before, threadsBefore, heapBefore := count(t, m), threads(), heap()
	churn(20, 120)
	settled(t, m, before)
	if n := threads(); n > threadsBefore+8 {
		t.Errorf("%d threads, %d before", n, threadsBefore)
	}
	// Half a KiB for each jail would be seen.
	if h := heap(); h > heapBefore+100<<10 {
		t.Errorf("%d bytes of heap, %d before", h, heapBefore)
	}
	for _, dir := range []string{m.jailsDir(), m.tenantsDir()} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: %v, %v", dir, entries, err)
		}
	}
}
