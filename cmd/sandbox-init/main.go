//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// The runtime would look for a cgroup file system that a jail does not have.

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"sandboxd/internal/ipc"
	"sandboxd/jail/sys"
	"sandboxd/jail/wire"
)

// socketFD is the daemon's socket.
const socketFD = 3

// main's goroutine keeps the first thread: it is the one whose Landlock domain
// the commands inherit.
func init() { runtime.LockOSThread() }

func main() {
	// Blocking, so that the first thread itself waits for a message: through the
	// runtime's poller another thread would have to wake it.
	if err := unix.SetNonblock(socketFD, false); err != nil {
		os.Exit(2)
	}
	unix.CloseOnExec(socketFD)
	conn := ipc.NewConn(os.NewFile(socketFD, "daemon"), wire.MaxFrame)
	s := &server{conn: conn, byPid: map[int]*child{}, byID: map[uint64]*child{}}
	if err := start(s); err != nil {
		conn.Send(failure(0, err).Marshal())
		os.Exit(1)
	}
	// The daemon's end is closed when it has died or wants the jail to end.
	if err := s.serve(); err != nil {
		conn.Send(failure(0, err).Marshal())
		os.Exit(1)
	}
}

// start builds and confines the jail, up to Ready. Up to Config nothing is
// known of a tenant, and this process may wait there for long.
func start(s *server) error {
	if os.Getpid() != 1 {
		return at("identity", fmt.Errorf("pid %d", os.Getpid()))
	}
	if err := protect(); err != nil {
		return err
	}
	prep, err := receive[*wire.Prepare](s.conn, nil)
	if err = at("prepare", err); err != nil {
		return err
	}
	st, err := prepare(prep)
	if err != nil {
		return err
	}
	var trees []*os.File
	cfg, err := receive[*wire.Config](s.conn, &trees)
	if err = at("config", err); err != nil {
		return err
	}
	if err := becomeRoot(); err != nil {
		return err
	}
	layers, err := receiveLayers(s.conn, cfg)
	if err = at("layers", err); err != nil {
		return err
	}
	root, err := build(cfg, st, trees, layers)
	if err != nil {
		return err
	}
	listener, err := confine(cfg, st)
	if err != nil {
		root.Close()
		return err
	}
	s.filter = st.execFilter
	// The daemon looks at our descriptors when it hears Ready: these are closed
	// before.
	err = s.conn.Send((&wire.Root{}).Marshal(), root, listener)
	root.Close()
	listener.Close()
	if err = at("root", err); err != nil {
		return err
	}
	ready := wire.Ready{Version: wire.Version, LandlockABI: uint64(min(sys.LandlockABI(), sys.LandlockKnown))}
	return at("ready", s.conn.Send(ready.Marshal()))
}

// protect ties this process to the daemon's life, and closes it to tracing and
// to the signals of commands that run as user 0.
func protect() error {
	if err := at("signals", sys.DefaultSignals()); err != nil {
		return err
	}
	if err := at("pdeathsig", unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)); err != nil {
		return err
	}
	return at("dumpable", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// becomeRoot takes the ids of the user namespace's root, which the daemon has
// mapped by now. The kernel forgets what protect did when ids change.
func becomeRoot() error {
	if err := at("identity", sys.RootAllThreads()); err != nil {
		return err
	}
	if os.Getuid() != 0 || os.Getgid() != 0 {
		return at("identity", fmt.Errorf("uid %d, gid %d", os.Getuid(), os.Getgid()))
	}
	// A kernel without keyrings has none to leave.
	unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	return protect()
}

// receive waits for a message of one kind, with as many trees as trees says it
// has: none if nil.
func receive[M any](conn *ipc.Conn, trees *[]*os.File) (m M, err error) {
	payload, files, err := conn.Recv()
	if err != nil {
		return m, err
	}
	any, err := wire.Unmarshal(payload)
	if err != nil {
		return m, err
	}
	m, ok := any.(M)
	want := 0
	if trees != nil {
		*trees, want = files, treeCount
	}
	if !ok || len(files) != want {
		return m, fmt.Errorf("message is %T with %d descriptors", any, len(files))
	}
	return m, nil
}

// receiveLayers gets a template's layers, the topmost first.
func receiveLayers(conn *ipc.Conn, cfg *wire.Config) ([]*os.File, error) {
	var out []*os.File
	for uint64(len(out)) < cfg.Layers {
		payload, files, err := conn.Recv()
		if err != nil {
			return nil, err
		}
		m, err := wire.Unmarshal(payload)
		if err != nil {
			return nil, err
		}
		if _, ok := m.(*wire.Layers); !ok || len(files) == 0 {
			return nil, fmt.Errorf("%T with %d descriptors", m, len(files))
		}
		out = append(out, files...)
	}
	return out, nil
}

// stepError says which step failed.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// at names the step of an error; nil stays nil, but where a test's build makes
// the step fail.
func at(step string, err error) error {
	if err == nil {
		err = faulty(step)
	}
	if err == nil {
		return nil
	}
	return &stepError{step, err}
}

func failure(id uint64, err error) *wire.Failed {
	f := &wire.Failed{ID: id, Text: err.Error()}
	var step *stepError
	var child *sys.StepError
	switch {
	case errors.As(err, &step):
		f.Step = step.step
	case errors.As(err, &child):
		f.Step = child.Step
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		f.Errno = uint64(errno)
	}
	return f
}
