package jail

import (
	"log/slog"
	"os"
	"time"

	"sandboxd/jail/rootfs"
)

// Config of a Manager.
type Config struct {
	// StateDir holds what outlives a jail: workspaces, uid ranges.
	StateDir string
	// RunDir holds what lives as long as the daemon: roots, exec logs, markers.
	RunDir string
	// CgroupDir is a cgroup v2 folder that is ours to make children in; the
	// daemon's own process must not be in it (no-internal-process rule).
	CgroupDir string
	// BestEffort allows a host whose cgroup v2 lacks controllers.
	BestEffort bool
	// Disk is how tenants are held to their disk limits: DiskAuto and others.
	Disk string
	// InitPath is the sandbox-init binary; it is copied to a sealed memfd once.
	InitPath string
	// UIDBase is the first host uid and gid of the tenants' ranges, 65536 for
	// each tenant.
	UIDBase uint32
	// TemplatesDir holds the imported root file systems; StateDir/templates if "".
	TemplatesDir string
	// TemplateLimits bound an import; zero means rootfs.DefaultLimits.
	TemplateLimits rootfs.Limits
	Log            *slog.Logger
}

// A Spec describes one tenant's jail.
type Spec struct {
	Tenant string
	// Template is "host" ("" too), the host's own /usr, or an imported one's name.
	Template string
	// WritableRoot lets a template's jail change its root: what is written is on
	// the tenant's disk and stays with its workspace. Commands may ask for user 0.
	WritableRoot bool
	// ResetRoot throws an earlier jail's changes of the root away.
	ResetRoot bool
	Limits    Limits
	// Env is the environment of every exec, under what the exec itself sets.
	Env map[string]string
	// NetNS is a prepared network namespace that the jail's processes are born
	// in; the Manager keeps no copy after Create. nil: an empty one.
	NetNS *os.File
	// Spare, of TakeSpare, takes the place of NetNS, Resolvers and CABundle. Create
	// uses it up, also when it fails; its Network is the caller's once Create has
	// returned a jail.
	Spare *Spare
	// Resolvers go to /etc/resolv.conf.
	Resolvers []string
	// CABundle (PEM) is what tools inside trust: the host's roots and the
	// tenant's own CA.
	CABundle []byte
	// Ephemeral workspaces are deleted with the jail.
	Ephemeral bool
}

// Limits of a jail. Zero means the built-in default, never "no limit".
type Limits struct {
	Memory    int64   // bytes
	CPUs      float64 // processors
	Pids      int
	OpenFiles int
	// Disk is in bytes: workspace and home together. The memory
	// file systems (/tmp and others) have as much, 512 MiB at most.
	Disk   int64
	Inodes int64 // files, folders and links of the same
	// IOBytes and IOOps are what may be read and, again, written of the disk with
	// these files in a second. Here zero means no limit.
	IOBytes int64
	IOOps   int64
}

// State of a jail.
const (
	StateCreating   = "creating"
	StateRunning    = "running"
	StateFrozen     = "frozen"
	StateDestroying = "destroying"
	StateGone       = "gone"
)

// Info describes a jail now.
type Info struct {
	Tenant  string
	State   string
	Created time.Time
	// Cause says why it ended ("destroyed", "idle", "lifetime", "oom",
	// "init_died", "daemon_stop" …), "" while it lives.
	Cause     string
	Usage     Usage
	Limits    Limits
	Processes int
	// Enforced names the limits that this host really enforces.
	Enforced []string
}

// Usage of a jail or an exec; -1 in a field means this host cannot tell.
type Usage struct {
	CPU        time.Duration
	MemoryNow  int64
	MemoryPeak int64
	PidsPeak   int64
	Disk       int64 // bytes; of a whole jail
	Inodes     int64
}

// An ExecSpec is one command to run in a jail.
type ExecSpec struct {
	// ID is the caller's; the same ID again is ErrExists and returns the
	// process that has it.
	ID   string
	Argv []string
	// Cwd is the jail's path; "" means /workspace.
	Cwd string
	Env map[string]string
	// User is who it runs as: "" for the tenant's one user, an id of the jail
	// (0 to 65535), or a name of the jail's /etc/passwd. User 0 is ErrNoRoot
	// unless the root is writable.
	User string
	// Stdin opens a pipe for Process.Stdin; otherwise it is /dev/null.
	Stdin bool
	// Terminal, if set, makes 0, 1 and 2 a new terminal of this size, the
	// command's controlling one. Its output is one stream (EventStdout), and
	// Process.Terminal is open whatever Stdin says.
	Terminal *Size
	// Files are the caller's own descriptors for 0, 1, 2 (nil entries: ours),
	// which CheckDescriptor must find good. They stay the caller's to close, once
	// Exec has returned. What is written to them is no event, is not bounded by
	// Output, and is not counted; one file may grow to Limits.Disk.
	Files [3]*os.File
	// Timeout kills the whole tree of this exec; 0 means none but the jail's.
	Timeout time.Duration
	// Output is the largest number of bytes kept of stdout and stderr together;
	// more is dropped and Exit.Truncated says so.
	Output int64
	// Keep is about how many bytes of events are kept, the newest; 0: 16 MiB,
	// which is also the most. Unlike Output it cuts nothing off at the end.
	Keep int64
	// Background processes outlive the caller; the daemon notes it, the Manager
	// treats all alike.
	Background bool
}

// A Size of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

// Event kinds.
const (
	EventStarted = "started"
	EventStdout  = "stdout"
	EventStderr  = "stderr"
	EventExit    = "exit"
)

// An Event of an exec. Data is hostile bytes.
type Event struct {
	Seq  uint64 // from 1, without gaps
	Time time.Time
	Kind string
	Data []byte
	Exit *Exit
}

// Exit is how an exec ended; code and signal come from waitid alone.
type Exit struct {
	Code      int    // -1 if a signal ended it
	Signal    string // "SIGKILL" …
	TimedOut  bool
	OOMKilled bool
	// Cause is set when the jail ended the exec ("jail_destroyed" …).
	Cause     string
	Truncated bool
	Wall      time.Duration
	Usage     Usage
	// Refused are the system calls that were refused to the command's processes,
	// of those worth knowing: mounts, namespaces, tracing, the kernel's settings.
	Refused []RefusedCall
	// PidsRefused counts forks that the jail's limit of processes refused, to
	// whichever command, while this one ran; where the host has that controller.
	PidsRefused int64
}

// ProcessInfo describes an exec.
type ProcessInfo struct {
	ID         string
	Argv       []string
	Started    time.Time
	Background bool
	// Pid is the number inside the jail, for people only.
	Pid    int
	Exit   *Exit // nil while it runs
	Events uint64
	// Refused are the system calls that were refused to it so far.
	Refused []RefusedCall
}

// FileInfo describes a file of a jail. Name and Target are hostile text.
type FileInfo struct {
	Name   string
	Type   string // "file", "dir", "symlink", "fifo", "socket", "device"
	Size   int64
	Mode   uint32 // permission bits
	MTime  time.Time
	Target string
}
