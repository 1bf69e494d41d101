package api

import (
	"time"

	"sandboxd/policy"
)

// JailRequest creates a jail or returns the one there is.
type JailRequest struct {
	Template    string            `json:"template,omitempty" max:"128" doc:"Root file system; policy's by default."`
	Limits      *policy.Limits    `json:"limits,omitempty"`
	IdleTimeout policy.Duration   `json:"idle_timeout,omitempty"`
	MaxLifetime policy.Duration   `json:"max_lifetime,omitempty"`
	Lease       string            `json:"lease,omitempty" enum:"connection,none" doc:"\"connection\": the jail ends with the connection that made it."`
	Env         map[string]string `json:"env,omitempty" max:"256"`
	Workspace   string            `json:"workspace,omitempty" enum:"persistent,ephemeral"`
	ResetRoot   bool              `json:"reset_root,omitempty" doc:"Throw away what earlier jails have written to a writable root; also where it was made on another template."`
}

// Jail describes a tenant's jail.
type Jail struct {
	Tenant    string    `json:"tenant" required:"true"`
	State     string    `json:"state" required:"true" enum:"creating,running,frozen,destroying,gone"`
	Template  string    `json:"template,omitempty"`
	Root      string    `json:"root,omitempty" enum:"read-only,writable" doc:"Whether its root file system may be changed."`
	Workspace string    `json:"workspace,omitempty" enum:"persistent,ephemeral"`
	Created   time.Time `json:"created"`
	// Deadline is when it ends at the latest.
	Deadline      time.Time       `json:"deadline,omitzero" doc:"When it ends at the latest."`
	DeadlineCause string          `json:"deadline_cause,omitempty"`
	IdleTimeout   policy.Duration `json:"idle_timeout,omitempty" doc:"Frozen after so long without activity: requests for it, running commands that are not background, preview traffic."`
	IdleAt        time.Time       `json:"idle_at,omitzero"`
	Cause         string          `json:"cause,omitempty" doc:"Why it ended."`
	Processes     int             `json:"processes"`
	Limits        policy.Limits   `json:"limits"`
	Enforced      []string        `json:"enforced" doc:"Limits that this host really enforces."`
	Usage         JailUsage       `json:"usage"`
	Ports         []Port          `json:"ports,omitempty"`
	Denials       []Denial        `json:"denials,omitempty" doc:"The last ones."`
}

// JailUsage of a whole jail; a missing value means this host cannot tell.
type JailUsage struct {
	CPU        *policy.Duration `json:"cpu,omitempty"`
	MemoryNow  *int64           `json:"memory_now,omitempty"`
	MemoryPeak *int64           `json:"memory_peak,omitempty"`
	PidsPeak   *int64           `json:"pids_peak,omitempty"`
	Disk       *int64           `json:"disk,omitempty" doc:"Bytes of its files on the disk."`
	Inodes     *int64           `json:"inodes,omitempty"`
	BytesOut   int64            `json:"bytes_out"`
	BytesIn    int64            `json:"bytes_in"`
	Requests   int64            `json:"requests"`
}

// JailList lists the jails of the tenants that the caller may act for.
type JailList struct {
	Jails []Jail `json:"jails"`
}

// ExecRequest runs a command in the jail.
type ExecRequest struct {
	Argv       []string          `json:"argv,omitempty" max:"4096" doc:"Program and arguments."`
	Command    string            `json:"command,omitempty" doc:"A line for /bin/sh -c, in place of argv."`
	Cwd        string            `json:"cwd,omitempty" max:"4096"`
	Env        map[string]string `json:"env,omitempty" max:"1024"`
	Stdin      bool              `json:"stdin,omitempty" doc:"Opens standard input for …/stdin; otherwise it is /dev/null."`
	TTY        *TTY              `json:"tty,omitempty" doc:"Runs it on a terminal, whose output is all stdout; …/stdin types, …/resize and …/tty serve it."`
	Timeout    policy.Duration   `json:"timeout,omitempty" doc:"Kills the whole process tree of this command."`
	Background bool              `json:"background,omitempty" doc:"Answers as soon as it started."`
	ExecID     string            `json:"exec_id,omitempty" max:"128" doc:"The same id again follows, never runs twice."`
	User       string            `json:"user,omitempty" max:"32" doc:"An id of the jail, or a name of its /etc/passwd; its one user by default, 0 only where the policy makes the root writable."`
	Receipt    *ReceiptRequest   `json:"receipt,omitempty"`
	FDs        *Descriptors      `json:"fds,omitempty" doc:"Descriptors of the caller's own that came with the request (SCM_RIGHTS)."`
}

// ReceiptRequest asks for more in a command's receipt.
type ReceiptRequest struct {
	Files bool `json:"files,omitempty" doc:"Which files of the workspace and the home changed while it ran, by whomever."`
}

// Descriptors name, by their place among those that came with the request's
// first byte, the caller's own descriptors that a command gets. Each is a pipe,
// a regular file or /dev/null, open in the one direction that is needed; a file
// to be written is empty. What is written to them does not pass through the daemon: there are no events of it,
// and no limit of output.
type Descriptors struct {
	Stdin  *int `json:"stdin,omitempty" min:"0" max:"2"`
	Stdout *int `json:"stdout,omitempty" min:"0" max:"2"`
	Stderr *int `json:"stderr,omitempty" min:"0" max:"2"`
}

// TTY is the size of a terminal.
type TTY struct {
	Cols int `json:"cols" required:"true" min:"1" max:"10000"`
	Rows int `json:"rows" required:"true" min:"1" max:"10000"`
}

// TerminalControl is what a terminal's WebSocket takes beside input.
type TerminalControl struct {
	Resize *TTY `json:"resize" required:"true"`
}

// Process is a command in a jail: running, or ended and how.
type Process struct {
	ExecID     string          `json:"exec_id" required:"true"`
	Tenant     string          `json:"tenant" required:"true"`
	Argv       []string        `json:"argv"`
	State      string          `json:"state" required:"true" enum:"running,exited"`
	Background bool            `json:"background,omitempty"`
	TTY        bool            `json:"tty,omitempty" doc:"It runs on a terminal."`
	Pid        int             `json:"pid,omitempty" doc:"Number inside the jail, for people."`
	Started    time.Time       `json:"started"`
	ExitCode   *int            `json:"exit_code,omitempty" doc:"From waitid only; absent while it runs and when a signal ended it."`
	Signal     string          `json:"signal,omitempty"`
	TimedOut   bool            `json:"timed_out,omitempty"`
	OOMKilled  bool            `json:"oom_killed,omitempty"`
	Cause      string          `json:"cause,omitempty" doc:"Set when the jail's end ended it."`
	Truncated  bool            `json:"truncated,omitempty"`
	Stdout     string          `json:"stdout,omitempty" doc:"Hostile text, in the answer of an exec that was not streamed."`
	Stderr     string          `json:"stderr,omitempty"`
	Timeout    policy.Duration `json:"timeout,omitempty"`
	Usage      Usage           `json:"usage"`
	Denials    []Denial        `json:"denials,omitempty"`
	Changes    *Diff           `json:"changes,omitempty" doc:"Files that changed while it ran, if asked for."`
	Receipt    *Receipt        `json:"receipt,omitempty"`
	Events     uint64          `json:"events,omitempty" doc:"Number of events so far."`
}

// ProcessList lists the commands of a jail.
type ProcessList struct {
	Processes []Process `json:"processes"`
}

// SignalRequest sends a signal to the command's whole tree.
type SignalRequest struct {
	Signal string `json:"signal" required:"true" enum:"HUP,INT,QUIT,KILL,USR1,USR2,TERM,CONT,STOP,TSTP,WINCH" doc:"Without SIG."`
}

// WaitRequest waits for exactly one thing.
type WaitRequest struct {
	Port      int             `json:"port,omitempty" min:"1" max:"65535" doc:"Until the jail listens on it."`
	LogRegexp string          `json:"log_regexp,omitempty" max:"4096" doc:"Until the output matches (RE2)."`
	Exit      bool            `json:"exit,omitempty" doc:"Until it has ended."`
	Timeout   policy.Duration `json:"timeout,omitempty" doc:"30 s by default."`
}

// WaitAnswer says that what was waited for happened.
type WaitAnswer struct {
	Process Process         `json:"process"`
	Waited  policy.Duration `json:"waited"`
}

// PortRequest publishes a port.
type PortRequest struct {
	TTL policy.Duration `json:"ttl,omitempty" doc:"How long; the jail's life at most."`
}

// Port is a published port.
type Port struct {
	Port    int       `json:"port" required:"true"`
	URL     string    `json:"url" required:"true"`
	Token   string    `json:"token"`
	Expires time.Time `json:"expires,omitzero"`
}

// PortList lists published ports.
type PortList struct {
	Ports []Port `json:"ports"`
}

// FileInfo describes a file of a jail. Names and targets are hostile text.
type FileInfo struct {
	Name string `json:"name"`
	// NameBase64 is set when Name cannot show all bytes.
	NameBase64 string    `json:"name_base64,omitempty" doc:"The name's bytes, when it is not UTF-8; in a path they are percent-encoded."`
	Type       string    `json:"type" enum:"file,dir,symlink,fifo,socket,device"`
	Size       int64     `json:"size"`
	Mode       string    `json:"mode" doc:"Permission bits, octal."`
	MTime      time.Time `json:"mtime"`
	Target     string    `json:"target,omitempty"`
}

// FileList lists a directory.
type FileList struct {
	Path  string     `json:"path"`
	Files []FileInfo `json:"files"`
}

// FileEvent is a change that a watch saw. Paths are hostile text.
type FileEvent struct {
	Op         string `json:"op" required:"true" enum:"create,modify,delete,rename,overflow"`
	Path       string `json:"path" required:"true"`
	PathBase64 string `json:"path_base64,omitempty" doc:"The path's bytes, when it is not UTF-8."`
	From       string `json:"from,omitempty" doc:"The path before a rename."`
	FromBase64 string `json:"from_base64,omitempty"`
	Dir        bool   `json:"dir,omitempty"`
	Reason     string `json:"reason,omitempty" doc:"Why events are missing: look at the tree itself."`
}

// ArchiveReport says what was unpacked.
type ArchiveReport struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// SnapshotRequest makes a snapshot.
type SnapshotRequest struct {
	Label string `json:"label,omitempty" max:"128" doc:"For people."`
}

// Snapshot is a copy of a tenant's workspace and home.
type Snapshot struct {
	ID      string          `json:"id" required:"true"`
	Label   string          `json:"label,omitempty"`
	State   string          `json:"state" enum:"complete,making"`
	Created time.Time       `json:"created"`
	Bytes   int64           `json:"bytes" doc:"As if nothing were shared; so far, while it is being made."`
	Entries int64           `json:"entries"`
	Frozen  policy.Duration `json:"frozen,omitempty" doc:"How long the jail stood still for it."`
}

// SnapshotList lists a tenant's snapshots.
type SnapshotList struct {
	Snapshots []Snapshot `json:"snapshots"`
}

// Change is a path that is not as it was. Paths are hostile text.
type Change struct {
	Path       string `json:"path" required:"true"`
	PathBase64 string `json:"path_base64,omitempty" doc:"The path's bytes, when it is not UTF-8."`
	Kind       string `json:"kind" required:"true" enum:"added,modified,deleted"`
	Type       string `json:"type" enum:"file,dir,symlink,fifo,socket,device"`
	Size       int64  `json:"size"`
}

// Diff lists changes, sorted by path.
type Diff struct {
	Since     string   `json:"since,omitempty" doc:"The snapshot; the jail's creation if there is none."`
	Changes   []Change `json:"changes"`
	Truncated bool     `json:"truncated,omitempty" doc:"There are more."`
}

// GitRequest runs git in the jail.
type GitRequest struct {
	Clone *GitClone `json:"clone" required:"true"`
}

// GitClone clones a repository. No credential belongs in the URL: the egress
// proxy adds what policy names.
type GitClone struct {
	URL       string `json:"url" required:"true" min:"1" max:"4096"`
	Branch    string `json:"branch,omitempty" max:"1024"`
	Depth     int    `json:"depth,omitempty" min:"1" max:"1000000"`
	Directory string `json:"directory,omitempty" max:"4096"`
}
