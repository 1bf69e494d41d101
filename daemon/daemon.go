package daemon

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/daemon/data"
	"sandboxd/daemon/recording"
	"sandboxd/isolate"
	"sandboxd/jail"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

// Modes of a daemon.
const (
	ModeServe = "serve"
	ModeDev   = "dev"
)

// Config of a Daemon. New takes ownership of the sockets, the preview listener
// and the credentials.
type Config struct {
	Version string
	Mode    string
	// StateDir outlives the daemon: audit log, data, workspaces. RunDir does not.
	StateDir, RunDir string
	// CacheDir holds compiled interpreters; "" means a folder of StateDir.
	CacheDir string
	// CgroupDir is a cgroup v2 folder of ours without processes; "" where there
	// is none, and then there are no jails.
	CgroupDir string
	// BestEffort lets jails run without the limits that this host cannot enforce.
	BestEffort bool
	// Disk is how jails are held to their disk limits: a kind of jail.Config.Disk.
	Disk   string
	Policy *policy.Policy
	// PolicyName is the policy's file, or a word for the built-in one.
	PolicyName string
	// LoadPolicy reads the policy again; nil: it cannot be reloaded.
	LoadPolicy  func() (*policy.Policy, error)
	Sockets     []*Socket
	Preview     net.Listener
	PreviewBase string
	// PreviewHTTPS and PreviewTLS are netproxy.Config's.
	PreviewHTTPS bool
	PreviewTLS   func() (chain, key *os.File, err error)
	Credentials  map[string]*os.File
	// StoreKey is the open file of the key of the store of credentials; nil
	// means a file of StateDir, which is made when there is none.
	StoreKey *os.File
	// PackageMax bounds the package cache in bytes; 0: there is none.
	PackageMax int64
	// Exe is the sandboxd binary, started again for the roles.
	Exe      string
	InitPath string
	GuestDir string
	UIDBase  uint32
	// TenantWorkers is how many worker processes of one tenant each there are at
	// most, TenantIdle how long one is kept idle; 0 means the pool's own.
	TenantWorkers int
	TenantIdle    time.Duration
	// JailSpares is how many jails are kept ready, jail.MaxSpares at most.
	JailSpares int
	// InProcess runs isolates in this process instead of workers, and no
	// egress proxy: for tests.
	InProcess bool
	Warnings  []string
	// Cleanup is called at the very end, last first.
	Cleanup []func() error
	Log     *slog.Logger
	// Progress is told of each part that started; it may be nil.
	Progress func(part string, took time.Duration, err error)
	// Preparing is told, in words, of what is still being prepared after that; it
	// may be nil.
	Preparing func(text string)
}

// Discard closes what a Config holds, in place of a daemon that was not made.
func (c *Config) Discard() error {
	var errs []error
	for _, s := range c.Sockets {
		errs = append(errs, s.Close())
	}
	if c.Preview != nil {
		if err := c.Preview.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if c.StoreKey != nil {
		errs = append(errs, c.StoreKey.Close())
	}
	for _, f := range c.Credentials {
		// The proxy closes what it was given.
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, f := range slices.Backward(c.Cleanup) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// Offsets from Config.UIDBase.
const (
	proxyUID   = 1
	workerUID  = 16
	tenantUIDs = 65536
)

// A Daemon is the running service.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	policy  livePolicy
	started time.Time
	base    context.Context // ends with the daemon
	cancel  context.CancelCauseFunc

	audit *audit.Log
	data  *data.Store
	// recordings are what replays need.
	recordings *recording.Store
	recorders  *recording.Budget
	pool       isolate.Pool
	net        *netproxy.Proxy
	jails      *jail.Manager
	// missing says why a part is not there.
	missing map[string]error

	runs     *registry
	tenants  *tenantTable
	egress   *egressUse
	backends *backends
	secrets  *secretStore
	spending *spending
	// functions are the deployments that are kept in memory.
	functions *functionTable

	metrics *metrics
	bodies  *budget
	peers   sync.Map // net.Conn → *peer
	roots   []byte   // the host's certificates, PEM

	diagnosis diagnosis
	stopping  atomic.Bool
	work      sync.WaitGroup // what must end before the parts are closed

	mu       sync.Mutex
	servers  []*http.Server    // guarded by mu
	startup  []api.StartupStep // guarded by mu
	warnings []string          // guarded by mu
}

// New starts every part; it returns when all are ready or have said why they
// cannot be. A part that this host cannot offer does not keep the others from
// starting: its requests are answered "unsupported".
func New(ctx context.Context, cfg Config) (*Daemon, error) {
	d := &Daemon{cfg: cfg, log: cfg.Log, started: time.Now(), missing: map[string]error{}, runs: newRegistry(), recorders: recording.NewBudget(maxRecorders), bodies: newBudget(), warnings: cfg.Warnings}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.policy.Store(cfg.Policy)
	d.base, d.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	d.metrics = newMetrics(d)
	d.tenants = newTenantTable(d)
	d.egress = newEgressUse(d)
	d.backends = newBackends()
	d.functions = newFunctionTable(d)
	// The parts live as long as the daemon; ctx ends their start alone.
	giveUp := context.AfterFunc(ctx, func() { d.cancel(ctx.Err()) })
	err := d.start(d.base)
	if err == nil && !giveUp() {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close(context.WithoutCancel(ctx)))
	}
	return d, nil
}

func (d *Daemon) start(ctx context.Context) error {
	for _, dir := range []string{d.cfg.StateDir, d.cfg.RunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	var err error
	if d.audit, err = audit.OpenWith(d.state("audit"), d.log, audit.Options{AppendOnly: d.cfg.Mode == ModeServe}); err != nil {
		if corrupt := (*audit.CorruptError)(nil); errors.As(err, &corrupt) {
			return fmt.Errorf("%w; nothing runs on a log that is not what was written: find out why, then move the folder %s elsewhere, and a new log begins", err, d.state("audit"))
		}
		return err
	}
	if d.data, err = data.Open(d.state("data")); err != nil {
		return err
	}
	if d.recordings, err = recording.Open(d.state("recordings"), d.log); err != nil {
		return err
	}
	if d.secrets, err = openSecrets(d.state("secrets"), &d.cfg); err != nil {
		return err
	}
	if d.spending, err = openSpending(d.state("budgets.json"), d.log); err != nil {
		return err
	}
	if err := d.startParts(ctx); err != nil {
		return err
	}
	_, err = d.audit.Append(ctx, audit.Record{Kind: audit.KindStart, Fields: map[string]any{
		"version": d.cfg.Version, "mode": d.cfg.Mode, "policy": d.cfg.PolicyName, "missing": d.missingNames()}})
	return err
}

// state is a folder below the state folder.
func (d *Daemon) state(name string) string { return filepath.Join(d.cfg.StateDir, name) }

// record writes to the audit log; its error means that nothing may go on.
func (d *Daemon) record(ctx context.Context, r audit.Record) (*api.Receipt, error) {
	// A caller that goes away does not keep its record from being written.
	receipt, err := d.audit.Append(context.WithoutCancel(ctx), r)
	if err != nil {
		d.metrics.auditFailures.Inc()
		d.log.Error("an audit record could not be written", "kind", r.Kind, "run", r.RunID, "error", err)
		return nil, &auditError{err}
	}
	return &api.Receipt{Seq: receipt.Seq, Hash: receipt.Hash}, nil
}

var errShutdown = errors.New("the daemon stops")

// Close ends everything: no new request, runs ended, jails destroyed, parts
// closed, the sockets gone. It goes on after errors and returns them all.
func (d *Daemon) Close(ctx context.Context) error {
	d.mu.Lock()
	was := d.stopping.Swap(true)
	d.mu.Unlock()
	if was {
		return nil
	}
	var errs []error
	for _, r := range d.runs.running() {
		r.cancel(errShutdown)
	}
	errs = append(errs, d.tenants.closeAll(ctx, "daemon_stop"))
	d.waitForWork(ctx)
	d.backends.close()
	d.cancel(errShutdown)
	d.mu.Lock()
	servers := d.servers
	d.mu.Unlock()
	for _, s := range servers {
		errs = append(errs, shutdown(ctx, s))
	}
	if d.jails != nil {
		errs = append(errs, d.jails.Close(ctx))
	}
	if d.pool != nil {
		errs = append(errs, d.pool.Close())
	}
	if d.net != nil {
		errs = append(errs, d.net.Close(ctx))
	}
	if d.spending != nil {
		errs = append(errs, d.spending.close())
	}
	if d.recordings != nil {
		d.recordings.Close()
	}
	if d.data != nil {
		d.functions.save()
		errs = append(errs, d.data.Close())
	}
	if d.audit != nil {
		_, err := d.audit.Append(context.WithoutCancel(ctx), audit.Record{Kind: audit.KindStop, Fields: map[string]any{"uptime": time.Since(d.started).String()}})
		errs = append(errs, err, d.audit.Close())
	}
	return errors.Join(append(errs, d.cfg.Discard())...)
}

// begin counts work that Close waits for; false means that none may begin.
func (d *Daemon) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping.Load() {
		return false
	}
	d.work.Add(1)
	return true
}

// waitForWork waits for runs to write their records.
func (d *Daemon) waitForWork(ctx context.Context) {
	idle := make(chan struct{})
	go func() { d.work.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-ctx.Done():
		d.log.Warn("some work did not end in time")
	}
}

// shutdown lets answers under way be written, and cuts what is left.
func shutdown(ctx context.Context, s *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := s.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// httpLog takes net/http's own messages.
func (d *Daemon) httpLog() *log.Logger { return slog.NewLogLogger(d.log.Handler(), slog.LevelDebug) }

// Alive takes the locks that every request needs, for the watchdog: in a daemon
// that is stuck it does not return. An audit log that cannot be written is no
// reason to restart: that would end the jails that still run.
func (d *Daemon) Alive(context.Context) error {
	d.runs.counts()
	d.tenants.all()
	return nil
}
