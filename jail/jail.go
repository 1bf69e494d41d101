package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/cgroup"
	"sandboxd/internal/ipc"
	"sandboxd/jail/rootfs"
	"sandboxd/jail/wire"
)

// Causes of a jail's end that the Manager itself records.
const (
	CauseDestroyed  = "destroyed"
	CauseDaemonStop = "daemon_stop"
	CauseInitDied   = "init_died"
	CauseOOM        = "oom"
	CauseProtocol   = "init_protocol"
	// CauseRestored is for who ends a jail to restore a snapshot: its files are
	// kept, though it is ephemeral.
	CauseRestored   = "restored"
	causeNotStarted = "not_started"
)

// ephemeralMark is a file in the tenant's folder: it goes with the jail.
const ephemeralMark = "ephemeral"

// Jail is one tenant's.
type Jail struct {
	m       *Manager
	tenant  string
	spec    Spec
	limits  Limits // guarded by mu once the jail is built
	cgroup  group
	created time.Time

	// Set by build, before the jail is handed out.
	uid      uint32
	pid      int // of sandbox-init, valid until init.gone is closed and read
	conn     *ipc.Conn
	init     *initProcess
	root     *os.File // O_PATH, in the jail's mount namespace
	listener *os.File // of sandbox-init's seccomp filter
	files    *os.File // the folder of the tenant's files; an image's mount is nowhere else
	loop     int      // number of an image's device
	landlock int
	template *rootfs.Template // nil: the host's system
	layers   *rootfs.Layers   // of the template
	project  uint32           // of the files, where there are project quotas
	born     unix.Timespec    // the file system's time when the jail was made

	// buildMu is held while the jail is built; teardown begins after it.
	buildMu sync.Mutex

	// atFiles bounds the file operations under way: each holds a thread of the
	// daemon's, and threads never go away again.
	atFiles chan struct{}
	watches atomic.Int32 // of files, under way
	// rootMu lets teardown wait for file operations before it closes root.
	rootMu   sync.RWMutex
	rootGone bool

	// writeMu keeps file operations that change something from doing so while a
	// snapshot is taken. Order: writeMu, freezeMu, rootMu.
	writeMu sync.RWMutex

	// goroutines end with the jail.
	goroutines sync.WaitGroup
	listens    bell // rung when a process calls listen

	// freezeMu serialises freezing and what must not happen while frozen.
	freezeMu sync.RWMutex

	updateMu sync.Mutex // one change of limits at a time

	// verifyOnce: the first command is looked at before it is let go.
	verifyMu     sync.Mutex
	verified     bool
	verifiedRoot bool // of those that are user 0

	mu      sync.Mutex // guards what follows
	state   string
	cause   string
	byID    map[string]*Process
	byNum   map[uint64]*Process
	order   []*Process // oldest first, for forgetting
	running int
	lastNum uint64
	linger  map[uint64]*Process // ended, but something in their group lives
	final   Usage

	tearOnce sync.Once
	ending   chan struct{} // closed when the end begins
	done     chan struct{}
	tearErr  error
}

func newJail(m *Manager, spec Spec) *Jail {
	cg := m.jails.child(spec.Tenant)
	if spec.Spare != nil {
		cg = spec.Spare.place.cgroup
	}
	return &Jail{
		m: m, tenant: spec.Tenant, spec: spec, limits: spec.Limits,
		cgroup: cg, created: time.Now(), state: StateCreating,
		byID: map[string]*Process{}, byNum: map[uint64]*Process{}, linger: map[uint64]*Process{},
		ending: make(chan struct{}), done: make(chan struct{}),
		atFiles: make(chan struct{}, maxAtFiles),
	}
}

func (j *Jail) tenantDir() string    { return filepath.Join(j.m.tenantsDir(), j.tenant) }
func (j *Jail) workspaceDir() string { return filepath.Join(j.filesDir(), "workspace") }
func (j *Jail) homeDir() string      { return filepath.Join(j.filesDir(), "home") }
func (j *Jail) runDir() string       { return filepath.Join(j.m.jailsDir(), j.tenant) }

// hostFilesDir is the folder of the state in which the tenant's files are, or
// over which an image stands.
func (j *Jail) hostFilesDir() string { return filepath.Join(j.tenantDir(), "files") }

// filesDir is where the tenant's files are while the jail is built, or rootMu is
// held and rootGone false: only then is the descriptor in it ours.
func (j *Jail) filesDir() string { return fmt.Sprintf("/proc/self/fd/%d", int(j.files.Fd())) }

// Tenant is whose it is.
func (j *Jail) Tenant() string { return j.tenant }

// Done is closed when the jail has ended and all of it is gone.
func (j *Jail) Done() <-chan struct{} { return j.done }

// Limits are those that hold now.
func (j *Jail) Limits() Limits {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.limits
}

// Info describes the jail now.
func (j *Jail) Info() Info {
	usage := j.cgroup.usage()
	usage.Disk, usage.Inodes = j.diskUsage()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state == StateGone {
		usage = j.final
	}
	return Info{
		Tenant: j.tenant, State: j.state, Created: j.created, Cause: j.cause, Usage: usage, Limits: j.limits,
		Processes: j.running, Enforced: j.enforced(),
	}
}

func (j *Jail) endedBy() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.cause
}

// receive reads what sandbox-init says until it hangs up. A message that makes
// no sense ends the jail.
func (j *Jail) receive() {
	cause := CauseInitDied
	for {
		payload, files, err := j.conn.Recv()
		closeAll(files)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				j.m.log.Warn("sandbox-init's connection failed", "tenant", j.tenant, "error", err)
			}
			break
		}
		if err := j.handle(payload, len(files)); err != nil {
			j.m.log.Warn("sandbox-init said something wrong", "tenant", j.tenant, "error", err)
			cause = CauseProtocol
			break
		}
	}
	// Not from here: teardown waits for this goroutine.
	go j.Destroy(context.Background(), cause)
}

func (j *Jail) handle(payload []byte, files int) error {
	if files != 0 {
		return fmt.Errorf("jail: %d unexpected descriptors", files)
	}
	m, err := wire.Unmarshal(payload)
	if err != nil {
		return err
	}
	var num uint64
	switch m := m.(type) {
	case *wire.Started:
		num = m.ID
	case *wire.Exited:
		num = m.ID
	case *wire.Failed:
		num = m.ID
	default:
		return fmt.Errorf("jail: unexpected %T", m)
	}
	_, more := m.(*wire.Started)
	j.mu.Lock()
	p := j.byNum[num]
	if !more {
		delete(j.byNum, num) // its last word on this command
	}
	j.mu.Unlock()
	if p == nil {
		return fmt.Errorf("jail: %T for unknown command %d", m, num)
	}
	return p.handle(m)
}

// Freeze stops every process of the jail until Thaw, Exec or Dial.
func (j *Jail) Freeze(ctx context.Context) error {
	j.freezeMu.Lock()
	defer j.freezeMu.Unlock()
	return j.setFrozen(ctx, true)
}

// Thaw lets a frozen jail run on.
func (j *Jail) Thaw(ctx context.Context) error {
	j.freezeMu.Lock()
	defer j.freezeMu.Unlock()
	return j.setFrozen(ctx, false)
}

func (j *Jail) setFrozen(ctx context.Context, frozen bool) error {
	from, to, value, want := StateRunning, StateFrozen, "1", 1
	if !frozen {
		from, to, value, want = StateFrozen, StateRunning, "0", 0
	}
	j.mu.Lock()
	state := j.state
	j.mu.Unlock()
	if state == to {
		return nil
	}
	if state != from {
		return ErrGone
	}
	if err := j.cgroup.write("cgroup.freeze", value); err != nil {
		return err
	}
	if err := j.cgroup.await(ctx, cgroup.Frozen, want); err != nil {
		return fmt.Errorf("jail: freeze: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state == from {
		j.state = to
	}
	return nil
}

// awake holds the jail thawed until the returned function is called.
func (j *Jail) awake(ctx context.Context) (release func(), err error) {
	for {
		j.freezeMu.RLock()
		j.mu.Lock()
		state := j.state
		j.mu.Unlock()
		switch state {
		case StateRunning:
			return j.freezeMu.RUnlock, nil
		case StateFrozen:
			j.freezeMu.RUnlock()
			if err := j.Thaw(ctx); err != nil {
				return nil, err
			}
		default:
			j.freezeMu.RUnlock()
			return nil, ErrGone
		}
	}
}
