package wire

import "fmt"

// Version of the language. The daemon carries its sandbox-init with it, so
// there is only ever one.
const Version = 2

// MaxFrame bounds a frame in both directions: argv and env of one command.
const MaxFrame = 4 << 20

// Kinds of messages; the first byte of each.
const (
	kindConfig = iota + 1
	kindExec
	kindSignal
	kindReady
	kindFailed
	kindStarted
	kindExited
	kindRoot
	kindPrepare
	kindLayers
)

// Prepare is the daemon's first message: what is the same for all jails, so that
// sandbox-init can do it before it is known whose jail it will be.
type Prepare struct {
	Version uint64
	// Opt says that the host's /opt is shown.
	Opt bool
	// MaskFiles, MaskDirs and ReadOnly are what exists in /proc of this kernel
	// and is to be covered or made read-only.
	MaskFiles, MaskDirs, ReadOnly []string
	// InitFilter and ExecFilter are BPF programs: the one of sandbox-init, and
	// the one that each command gets on top.
	InitFilter, ExecFilter []byte
}

// Config is the daemon's second message, which comes when the ids of the user
// namespace are mapped. Its descriptors are detached mounts: the folder that
// holds the overlay's upper and work, and the one of the tenant's own files:
// workspace, home.
type Config struct {
	Hostname string
	// TmpBytes and TmpInodes bound all memory file systems together.
	TmpBytes, TmpInodes uint64
	// Loopback says that the network namespace is the jail's own: bring lo up.
	Loopback bool
	// Layers is how many layers of a template follow, in Layers messages; 0: the
	// root is the host's system.
	Layers uint64
	// WritableRoot says that the tenant's files hold a root's upper layer.
	WritableRoot bool
}

// Layers brings a template's layers as detached mounts, the topmost first: the
// next ones of as many as Config said.
type Layers struct{}

// Exec starts a command. Its descriptors are stdin, stdout, stderr, the cgroup
// folder and the gate (a socket).
type Exec struct {
	ID   uint64
	Argv []string
	Env  []string
	Cwd  string
	// Paths are the files to try to execute, in order.
	Paths []string
	// Terminal says that stdin is a terminal, to be the command's controlling one.
	Terminal bool
	// UID and GID are the command's, in the jail.
	UID, GID uint32
	// FileBytes is the largest size of a file that it may write; 0: no limit of
	// its own.
	FileBytes uint64
	// OpenFiles and Pids are its RLIMIT_NOFILE and RLIMIT_NPROC.
	OpenFiles, Pids uint64
}

// Signal goes to the process group that a command leads.
type Signal struct {
	ID     uint64
	Signal uint64
}

// Root comes when the jail's root is built and sandbox-init confined. Its
// descriptors are the root, opened with O_PATH, and the listener of
// sandbox-init's seccomp filter.
type Root struct{}

// Ready says that the jail is confined.
type Ready struct {
	Version     uint64
	LandlockABI uint64
}

// Failed says why the jail, or a command (ID not 0), could not be started.
type Failed struct {
	ID    uint64
	Step  string
	Errno uint64
	Text  string
}

// Started says that a command runs.
type Started struct {
	ID  uint64
	Pid uint64 // in the jail
}

// Exited says how a command ended, from waitid.
type Exited struct {
	ID     uint64
	Code   int64 // -1 if a signal ended it
	Signal uint64
}

// Marshal writes a message.
func (m *Prepare) Marshal() []byte {
	w := &writer{b: []byte{kindPrepare}}
	w.u64(m.Version)
	w.flag(m.Opt)
	w.strs(m.MaskFiles)
	w.strs(m.MaskDirs)
	w.strs(m.ReadOnly)
	w.bytes(m.InitFilter)
	w.bytes(m.ExecFilter)
	return w.b
}

// Marshal writes a message.
func (m *Config) Marshal() []byte {
	w := &writer{b: []byte{kindConfig}}
	w.str(m.Hostname)
	w.u64(m.TmpBytes)
	w.u64(m.TmpInodes)
	w.flag(m.Loopback)
	w.u64(m.Layers)
	w.flag(m.WritableRoot)
	return w.b
}

// Marshal writes a message.
func (m *Layers) Marshal() []byte { return []byte{kindLayers} }

// Marshal writes a message.
func (m *Exec) Marshal() []byte {
	w := &writer{b: []byte{kindExec}}
	w.u64(m.ID)
	w.strs(m.Argv)
	w.strs(m.Env)
	w.str(m.Cwd)
	w.strs(m.Paths)
	w.flag(m.Terminal)
	w.u64(m.FileBytes)
	w.u64(m.OpenFiles)
	w.u64(m.Pids)
	w.u64(uint64(m.UID))
	w.u64(uint64(m.GID))
	return w.b
}

// Marshal writes a message.
func (m *Signal) Marshal() []byte {
	w := &writer{b: []byte{kindSignal}}
	w.u64(m.ID)
	w.u64(m.Signal)
	return w.b
}

// Marshal writes a message.
func (m *Root) Marshal() []byte { return []byte{kindRoot} }

// Marshal writes a message.
func (m *Ready) Marshal() []byte {
	w := &writer{b: []byte{kindReady}}
	w.u64(m.Version)
	w.u64(m.LandlockABI)
	return w.b
}

// Marshal writes a message.
func (m *Failed) Marshal() []byte {
	w := &writer{b: []byte{kindFailed}}
	w.u64(m.ID)
	w.str(m.Step)
	w.u64(m.Errno)
	w.str(m.Text)
	return w.b
}

// Marshal writes a message.
func (m *Started) Marshal() []byte {
	w := &writer{b: []byte{kindStarted}}
	w.u64(m.ID)
	w.u64(m.Pid)
	return w.b
}

// Marshal writes a message.
func (m *Exited) Marshal() []byte {
	w := &writer{b: []byte{kindExited}}
	w.u64(m.ID)
	w.i64(m.Code)
	w.u64(m.Signal)
	return w.b
}

// Unmarshal reads one message of any kind and returns a pointer to it.
func Unmarshal(b []byte) (any, error) {
	if len(b) == 0 {
		return nil, ErrMalformed
	}
	r := &reader{b: b[1:]}
	var m any
	switch b[0] {
	case kindPrepare:
		c := &Prepare{Version: r.u64()}
		if c.Version != Version {
			return nil, fmt.Errorf("%w: version %d, want %d", ErrMalformed, c.Version, Version)
		}
		c.Opt = r.flag()
		c.MaskFiles, c.MaskDirs, c.ReadOnly = r.strs(), r.strs(), r.strs()
		c.InitFilter, c.ExecFilter = r.bytes(), r.bytes()
		m = c
	case kindConfig:
		c := &Config{Hostname: r.str()}
		c.TmpBytes, c.TmpInodes = r.u64(), r.u64()
		c.Loopback = r.flag()
		c.Layers, c.WritableRoot = r.u64(), r.flag()
		m = c
	case kindExec:
		m = &Exec{ID: r.u64(), Argv: r.strs(), Env: r.strs(), Cwd: r.str(), Paths: r.strs(), Terminal: r.flag(), FileBytes: r.u64(), OpenFiles: r.u64(), Pids: r.u64(), UID: uint32(r.u64()), GID: uint32(r.u64())}
	case kindLayers:
		m = &Layers{}
	case kindSignal:
		m = &Signal{ID: r.u64(), Signal: r.u64()}
	case kindRoot:
		m = &Root{}
	case kindReady:
		m = &Ready{Version: r.u64(), LandlockABI: r.u64()}
	case kindFailed:
		m = &Failed{ID: r.u64(), Step: r.str(), Errno: r.u64(), Text: r.str()}
	case kindStarted:
		m = &Started{ID: r.u64(), Pid: r.u64()}
	case kindExited:
		m = &Exited{ID: r.u64(), Code: r.i64(), Signal: r.u64()}
	default:
		return nil, fmt.Errorf("%w: kind %d", ErrMalformed, b[0])
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	return m, nil
}
