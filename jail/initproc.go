package jail

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/jail/sys"
)

// initProcess is PID 1 of a jail, by its pidfd.
type initProcess struct {
	pidfd *os.File
	gone  chan struct{} // closed when it is reaped
}

// newInitProcess takes over the child's pidfd and waits for its end through the
// runtime's poller: no thread is bound by a jail.
func newInitProcess(child *sys.Child) *initProcess {
	unix.SetNonblock(child.PidFD, true)
	p := &initProcess{pidfd: os.NewFile(uintptr(child.PidFD), "pidfd"), gone: make(chan struct{})}
	go p.wait()
	return p
}

func (p *initProcess) wait() {
	defer close(p.gone)
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG, nil)
		// No error and no signal number: it still runs.
		return !errors.Is(err, unix.EAGAIN) && (err != nil || info.Signo != 0)
	})
}

// kill is harmless when it has ended.
func (p *initProcess) kill() {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}
