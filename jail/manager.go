package jail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
	"sandboxd/jail/rootfs"
	"sandboxd/jail/sys"
	"sandboxd/jail/wire"
)

// tenantName is api.md's rule; it also keeps names safe as file names.
var tenantName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// Manager makes, finds and ends jails.
type Manager struct {
	cfg Config
	log *slog.Logger

	locks      []*os.File // on RunDir and CgroupDir: two daemons would end each other's jails
	proc       int        // the daemon's own /proc, opened once
	null       *os.File
	initFile   *os.File      // sealed memfd
	prepare    *wire.Prepare // what every sandbox-init is told first
	calls      noticeTable   // refused calls that are remembered
	host       hostFacts
	jails      group
	uids       *uids
	templates  *rootfs.Store
	spawn      *spawner
	imageMu    sync.Mutex // while an empty image is made
	homeNet    *os.File   // the daemon's own network namespace
	pool       *pool
	hostBundle []byte                                  // the host's certificates
	breakInit  string                                  // tests: a step of initProgram that fails
	faults     atomic.Pointer[func(step string) error] // tests
	watches    atomic.Int32                            // of files, in all jails

	mu        sync.Mutex
	byName    map[string]*Jail
	making    map[string]*making // snapshots under way, by tenant
	restoring map[string]bool    // tenants with a Restore
	closed    bool
}

// hostFacts is what New finds out once.
type hostFacts struct {
	opt         bool
	lastCap     int
	filters     int // seccomp filters on the daemon itself, which jails inherit
	controllers []string
	io          bool // whether I/O can be limited, where its device can be found
	enforced    []string
	noProject   string // why there are no project quotas
	disk        string // what holds tenants to their disk limits
	maskFiles   []string
	maskDirs    []string
	readOnly    []string
}

// New checks what the host offers and prepares what all jails share. Its errors
// are *UnsupportedError where the host lacks something.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{cfg: cfg, log: cfg.Log, proc: -1, byName: map[string]*Jail{}, making: map[string]*making{}, restoring: map[string]bool{}}
	m.pool = newPool(m)
	if err := m.open(ctx); err != nil {
		m.release()
		return nil, err
	}
	return m, nil
}

func (m *Manager) open(ctx context.Context) error {
	steps := []func(context.Context) error{
		m.checkKernel, m.openFolders, m.readBundle, m.probeProc, m.compileFilters, m.openInit, m.startSpawner, m.openCgroups, m.chooseDisk,
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkKernel refuses a host that cannot hold a jail at all.
func (m *Manager) checkKernel(context.Context) error {
	if unix.Geteuid() != 0 {
		return &UnsupportedError{Feature: "root", Found: fmt.Sprintf("uid %d", unix.Geteuid()), Needed: "uid 0", Remedy: "run the daemon as root"}
	}
	if abi := sys.LandlockABI(); abi < sys.LandlockNeeded {
		return &UnsupportedError{
			Feature: "landlock", Found: fmt.Sprintf("version %d", abi), Needed: fmt.Sprintf("version %d", sys.LandlockNeeded),
			Remedy: "use Linux 6.12 or newer with landlock in the lsm= list",
		}
	}
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		return &UnsupportedError{Feature: "user namespaces", Found: err.Error(), Needed: "CONFIG_USER_NS", Remedy: "use a kernel with user namespaces"}
	}
	b, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if err != nil || strings.TrimSpace(string(b)) == "0" {
		return &UnsupportedError{Feature: "user namespaces", Found: "max_user_namespaces is " + strings.TrimSpace(string(b)), Needed: "more than 0", Remedy: "sysctl user.max_user_namespaces=16384"}
	}
	m.host.lastCap = sys.LastCap()
	return nil
}

func (m *Manager) openFolders(context.Context) error {
	if m.cfg.UIDBase < uidRange || m.cfg.UIDBase >= 1<<32-2*uidRange {
		return &SpecError{Field: "UIDBase", Message: "leave room for the host's own ids below and one range above"}
	}
	for _, dir := range []string{m.cfg.StateDir, m.cfg.RunDir} {
		if !filepath.IsAbs(dir) {
			return &SpecError{Field: "StateDir", Message: fmt.Sprintf("%q is not absolute", dir)}
		}
	}
	for dir, mode := range map[string]fs.FileMode{
		m.cfg.StateDir: 0o711, m.tenantsDir(): 0o711, m.cfg.RunDir: 0o711, m.jailsDir(): 0o711,
	} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("jail: %w", err)
		}
	}
	for _, dir := range []string{m.cfg.RunDir, m.cfg.CgroupDir} {
		lock, err := os.Open(dir)
		if err != nil && dir == m.cfg.CgroupDir {
			return noCgroup(dir, err)
		}
		if err != nil {
			return fmt.Errorf("jail: %w", err)
		}
		m.locks = append(m.locks, lock)
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return fmt.Errorf("jail: %s is another daemon's: %w", dir, err)
		}
	}
	var err error
	if m.uids, err = loadUIDs(m.tenantsDir(), m.cfg.UIDBase); err != nil {
		return err
	}
	if err = m.openTemplates(); err != nil {
		return err
	}
	if m.null, err = os.OpenFile("/dev/null", os.O_RDWR, 0); err != nil {
		return fmt.Errorf("jail: %w", err)
	}
	if m.proc, err = unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("jail: /proc: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(m.proc, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		return &UnsupportedError{Feature: "/proc", Found: "something else is mounted there", Needed: "procfs", Remedy: "mount procfs on /proc"}
	}
	return nil
}

func (m *Manager) tenantsDir() string { return filepath.Join(m.cfg.StateDir, "tenants") }
func (m *Manager) jailsDir() string   { return filepath.Join(m.cfg.RunDir, "jails") }

// openCgroups prepares CgroupDir/jails and learns which limits can hold.
func (m *Manager) openCgroups(context.Context) error {
	top := group(m.cfg.CgroupDir)
	have, missing, io, err := enableControllers(top)
	if err != nil {
		return err
	}
	if len(missing) > 0 && !m.cfg.BestEffort {
		return &UnsupportedError{
			Feature: "cgroup v2 controllers", Found: "no " + strings.Join(missing, ", ") + " at " + m.cfg.CgroupDir,
			Needed: "memory, pids and cpu",
			Remedy: "boot with the unified hierarchy (systemd.unified_cgroup_hierarchy=1) and Delegate=yes, or accept unenforced limits with limits: best-effort",
		}
	}
	m.jails = top.child("jails")
	if err := m.jails.make(); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(string(m.jails), "cgroup.kill")); err != nil {
		return &UnsupportedError{Feature: "cgroup.kill", Found: "none", Needed: "Linux 5.14", Remedy: "use a newer kernel"}
	}
	pass := have
	if io {
		pass = append(slices.Clone(have), "io")
	}
	if err := m.jails.enable(pass); err != nil {
		return err
	}
	m.host.controllers, m.host.io = have, io
	// Held without cgroups: descriptors, and processes by the rlimit of the
	// tenant's own uid range.
	m.host.enforced = []string{"open_files", "pids"}
	for _, c := range controllers {
		for _, name := range have {
			if c.name == name && c.limit != "pids" {
				m.host.enforced = append(m.host.enforced, c.limit)
			}
		}
	}
	return nil
}

// probeProc finds out which of the files to cover this kernel has.
func (m *Manager) probeProc(context.Context) error {
	for _, name := range []string{
		"kcore", "keys", "key-users", "kmsg", "kallsyms", "timer_list", "sched_debug", "latency_stats", "interrupts",
		"vmallocinfo", "slabinfo", "config.gz",
	} {
		if m.procHas(name) {
			m.host.maskFiles = append(m.host.maskFiles, name)
		}
	}
	for _, name := range []string{"acpi", "scsi", "asound", "driver"} {
		if m.procHas(name) {
			m.host.maskDirs = append(m.host.maskDirs, name)
		}
	}
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs"} {
		if m.procHas(name) {
			m.host.readOnly = append(m.host.readOnly, name)
		}
	}
	st, err := os.Stat("/opt")
	m.host.opt = err == nil && st.IsDir()
	status, err := m.readProc("self/status")
	if err != nil {
		return err
	}
	m.host.filters = status.number("Seccomp_filters")
	return nil
}

func (m *Manager) procHas(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(m.proc, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

func (m *Manager) compileFilters(context.Context) error {
	p := &wire.Prepare{Version: wire.Version, Opt: m.host.opt, MaskFiles: m.host.maskFiles, MaskDirs: m.host.maskDirs, ReadOnly: m.host.readOnly}
	for _, f := range []struct {
		to   *[]byte
		list *seccomp.Filter
	}{{&p.ExecFilter, ExecFilter()}, {&p.InitFilter, InitFilter()}} {
		prog, err := seccomp.Compile(f.list)
		if err != nil {
			return fmt.Errorf("jail: %w", err)
		}
		*f.to = seccomp.Marshal(prog)
	}
	m.prepare = p
	m.calls = newNoticeTable()
	return nil
}

func (m *Manager) openInit(context.Context) (err error) {
	m.initFile, err = sealedInit(m.cfg.InitPath)
	return err
}

func (m *Manager) startSpawner(context.Context) (err error) {
	base := filepath.Join(m.cfg.RunDir, "base")
	if err := removeAll(base); err != nil {
		return err
	}
	if err := makeSkeleton(base, m.host.opt); err != nil {
		return err
	}
	if m.spawn, err = newSpawner(base, m.host.opt, group(m.cfg.CgroupDir)); err != nil {
		return fmt.Errorf("jail: %w", err)
	}
	if m.spawn.ownCgroupNS != nil {
		m.log.Warn("jails will see the path of their cgroup", "reason", m.spawn.ownCgroupNS)
	}
	if m.homeNet, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return fmt.Errorf("jail: network namespace: %w", err)
	}
	return nil
}

// Get finds a tenant's jail.
func (m *Manager) Get(tenant string) (*Jail, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, ok := m.byName[tenant]
	return j, ok
}

// List returns all jails.
func (m *Manager) List() []*Jail {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*Jail, 0, len(m.byName))
	for _, j := range m.byName {
		out = append(out, j)
	}
	return out
}

// RemoveWorkspace deletes what a tenant without a jail has kept, and frees its
// uid range.
func (m *Manager) RemoveWorkspace(ctx context.Context, tenant string) error {
	if !tenantName.MatchString(tenant) {
		return &SpecError{Field: "tenant", Message: "not a tenant's name"}
	}
	m.mu.Lock()
	if _, ok := m.byName[tenant]; ok {
		m.mu.Unlock()
		return ErrExists
	}
	// Nobody may make a jail of it meanwhile.
	place := newJail(m, Spec{Tenant: tenant})
	m.byName[tenant] = place
	m.mu.Unlock()
	err := m.removeTenant(tenant)
	m.mu.Lock()
	delete(m.byName, tenant)
	m.mu.Unlock()
	close(place.done)
	return err
}

// Forget removes what outlives a tenant's jail: its workspace, its home and its
// range of ids. It is ErrExists while there is a jail, and nothing where there
// is nothing. The caller sees to it that no Create for the tenant begins
// meanwhile.
func (m *Manager) Forget(tenant string) error {
	if !tenantName.MatchString(tenant) {
		return &SpecError{Field: "tenant", Message: "is not a tenant's name"}
	}
	if _, ok := m.Get(tenant); ok {
		return ErrExists
	}
	return m.removeTenant(tenant)
}

func (m *Manager) removeTenant(tenant string) error {
	if err := removeAll(filepath.Join(m.tenantsDir(), tenant)); err != nil {
		return err
	}
	m.uids.release(tenant)
	return nil
}

// Close ends all jails and gives everything back.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.mu.Unlock()
	var errs []error
	if err := m.pool.close(); err != nil {
		errs = append(errs, err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, j := range m.List() {
		wg.Go(func() {
			if err := j.Destroy(ctx, CauseDaemonStop); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(errs) == 0 && m.jails != "" {
		errs = append(errs, m.jails.rmdir())
	}
	m.release()
	if err := removeAll(filepath.Join(m.cfg.RunDir, "base")); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// release frees threads and descriptors.
func (m *Manager) release() {
	if m.spawn != nil {
		m.spawn.close()
	}
	if m.proc >= 0 {
		unix.Close(m.proc)
		m.proc = -1
	}
	for _, f := range append(m.locks, m.null, m.initFile, m.homeNet) {
		if f != nil {
			f.Close()
		}
	}
}
