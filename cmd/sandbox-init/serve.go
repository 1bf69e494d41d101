package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"sandboxd/internal/ipc"
	"sandboxd/jail/sys"
	"sandboxd/jail/wire"
)

// Descriptors that an Exec brings, and where the child has them.
const (
	fdGate = 4 // after stdin, stdout, stderr and the end of the settled pipe

	execFiles  = 5 // stdin, stdout, stderr, cgroup, gate
	fileCgroup = 3
	fileGate   = 4
)

// pidfdSignalProcessGroup is PIDFD_SIGNAL_PROCESS_GROUP: older kernels than the
// Landlock version that we need do not have it.
const pidfdSignalProcessGroup = 1 << 2

// server starts, signals and reaps commands.
type server struct {
	conn   *ipc.Conn
	filter []unix.SockFilter

	mu    sync.Mutex
	cond  *sync.Cond // there are children again
	byPid map[int]*child
	byID  map[uint64]*child
}

// child is one command's leader.
type child struct {
	id      uint64
	run     *sys.Child
	settled bool // it is known whether the program was executed
	failed  bool
	ended   *unix.WaitStatus
}

// serve answers the daemon until it hangs up.
func (s *server) serve() error {
	s.cond = sync.NewCond(&s.mu)
	go s.reap()
	for {
		payload, files, err := s.conn.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return at("receive", err)
		}
		m, err := wire.Unmarshal(payload)
		if err != nil {
			return at("receive", err)
		}
		switch m := m.(type) {
		case *wire.Exec:
			if err := s.exec(m, files); err != nil {
				s.conn.Send(failure(m.ID, err).Marshal())
			}
		case *wire.Signal:
			s.signal(m)
		default:
			return at("receive", fmt.Errorf("unexpected %T", m))
		}
		for _, f := range files {
			f.Close()
		}
	}
}

// exec forks a command. It runs on the first thread.
func (s *server) exec(m *wire.Exec, files []*os.File) error {
	if len(files) != execFiles {
		return at("request", fmt.Errorf("%d descriptors", len(files)))
	}
	if len(m.Argv) == 0 || len(m.Paths) == 0 {
		return at("request", errors.New("no program"))
	}
	settled, end, err := os.Pipe()
	if err != nil {
		return at("pipe", err)
	}
	p := s.program(m, files, end)
	s.mu.Lock()
	run, err := p.Start(0, int(files[fileCgroup].Fd()))
	end.Close()
	if err != nil {
		s.mu.Unlock()
		settled.Close()
		return err
	}
	c := &child{id: m.ID, run: run}
	s.byPid[run.Pid], s.byID[m.ID] = c, c
	s.cond.Signal()
	s.mu.Unlock()
	go s.settle(c, settled)
	return nil
}

// program is what a command's process does before it is the tenant's.
func (s *server) program(m *wire.Exec, files []*os.File, end *os.File) *sys.Program {
	p := &sys.Program{}
	p.Descriptors(int(files[0].Fd()), int(files[1].Fd()), int(files[2].Fd()), int(end.Fd()), int(files[fileGate].Fd()))
	p.CloseOnExec(3)
	p.Call("setsid", unix.SYS_SETSID)
	if m.Terminal {
		p.Call("terminal", unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	}
	p.Call("umask", unix.SYS_UMASK, 0o022)
	p.Rlimit(unix.RLIMIT_NOFILE, m.OpenFiles)
	p.Rlimit(unix.RLIMIT_NPROC, m.Pids)
	if m.FileBytes > 0 {
		p.Rlimit(unix.RLIMIT_FSIZE, m.FileBytes)
	}
	p.IDs(int(m.UID), int(m.GID))
	p.CapNone()
	p.Signals(false)
	// With the tenant's own rights from here on.
	p.Chdir(m.Cwd, fdGate+1)
	p.Seccomp(s.filter)
	if m.UID == 0 {
		p.Seccomp(sys.PretendOwners())
	}
	// The daemon looks at the process as it is now and answers, or hangs up.
	b := p.Bytes(make([]byte, 1))
	p.CallMin("gate", 1, unix.SYS_WRITE, fdGate, b, 1)
	p.CallMin("gate", 1, unix.SYS_READ, fdGate, b, 1)
	argv, env := p.Strings(m.Argv), p.Strings(m.Env)
	for i, path := range m.Paths {
		if i < len(m.Paths)-1 {
			p.Try("exec", unix.SYS_EXECVE, p.String(path), argv, env)
		} else {
			p.Call("exec", unix.SYS_EXECVE, p.String(path), argv, env)
		}
	}
	return p
}

// settle waits until the child has executed its program or has failed to.
func (s *server) settle(c *child, settled *os.File) {
	var b [1]byte
	settled.Read(b[:])
	settled.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	c.settled = true
	if err := c.run.Finish(); err != nil {
		c.failed = true
		s.conn.Send(failure(c.id, err).Marshal())
	} else {
		started := wire.Started{ID: c.id, Pid: uint64(c.run.Pid)}
		s.conn.Send(started.Marshal())
	}
	s.finish(c)
}

// finish reports the end of a settled child, once it has ended. s.mu is held.
func (s *server) finish(c *child) {
	if !c.settled || c.ended == nil {
		return
	}
	unix.Close(c.run.PidFD)
	delete(s.byID, c.id)
	if c.failed {
		return
	}
	exited := wire.Exited{ID: c.id, Code: -1}
	if c.ended.Signaled() {
		exited.Signal = uint64(c.ended.Signal())
	} else {
		exited.Code = int64(c.ended.ExitStatus())
	}
	s.conn.Send(exited.Marshal())
}

// reap waits for children and orphans for ever.
func (s *server) reap() {
	for {
		pid, err := sys.NextDead()
		s.mu.Lock()
		if err == nil {
			var status unix.WaitStatus
			if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err == nil {
				if c := s.byPid[pid]; c != nil {
					delete(s.byPid, pid)
					c.ended = &status
					s.finish(c)
				}
			}
		} else {
			// No child at all, so no orphan can come either until the next exec.
			for len(s.byPid) == 0 {
				s.cond.Wait()
			}
		}
		s.mu.Unlock()
	}
}

// signal runs on the first thread: the others are in other Landlock domains
// than the commands and may not signal them.
func (s *server) signal(m *wire.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.byID[m.ID]; c != nil && c.ended == nil {
		unix.PidfdSendSignal(c.run.PidFD, unix.Signal(m.Signal), nil, pidfdSignalProcessGroup)
	}
}
