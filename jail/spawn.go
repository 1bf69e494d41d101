package jail

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/jail/sys"
)

// startOnSpawner runs on the spawner's thread. The network namespace is the one
// that the thread is in at the clone: owned by the host's user namespace, so
// that the jail's root has no power over it.
func (m *Manager) startOnSpawner(p *sys.Program, cgroupFD int, netNS *os.File) (*sys.Child, error) {
	flags := uint64(namespaces)
	if netNS == nil {
		flags |= unix.CLONE_NEWNET
		return p.Start(flags, cgroupFD)
	}
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("jail: network namespace: %w", err)
	}
	defer unix.Close(home)
	if err := unix.Setns(int(netNS.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("jail: network namespace: %w", err)
	}
	child, err := p.Start(flags, cgroupFD)
	// Nothing else is cloned from this thread without setns or NEWNET before,
	// so staying would be harmless; it would only keep the namespace alive.
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		m.log.Error("spawner could not leave a jail's network namespace", "error", back)
	}
	return child, err
}

// initProgram is what happens between clone3 and execve of sandbox-init. The
// ids are still the daemon's; the supplementary groups are not, see
// buildTemplate.
func (m *Manager) initProgram(socket int) *sys.Program {
	null := int(m.null.Fd())
	p := &sys.Program{}
	p.Descriptors(null, null, null, socket, int(m.initFile.Fd()))
	p.CloseOnExec(initExe)
	p.Call("setsid", unix.SYS_SETSID)
	p.Call("pdeathsig", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	p.Call("umask", unix.SYS_UMASK, 0o077)
	// The kernel's default again: the daemon's timers are coarser.
	p.Call("timer slack", unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 50_000, 0, 0, 0)
	// A kernel without keyrings has none to leave.
	p.Try("keyring", unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0)
	for _, l := range m.rlimits() {
		p.Rlimit(l.resource, l.value)
	}
	p.CapCarry(initCaps, m.host.lastCap)
	p.Signals(true)
	p.Call("exec", unix.SYS_EXECVEAT, initExe, p.String(""), p.Strings([]string{"sandbox-init"}), p.Strings(nil), unix.AT_EMPTY_PATH)
	return p
}

type rlimit struct {
	resource int
	value    uint64
}

// rlimits are the same for all jails; wire.Exec has those that a command gets
// beside. There is none for the address space: node and Wasm reserve terabytes
// that they never touch.
func (m *Manager) rlimits() []rlimit {
	limits := []rlimit{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_MEMLOCK, 64 << 10},
		{unix.RLIMIT_MSGQUEUE, 819200},
		{unix.RLIMIT_SIGPENDING, 1024},
		{unix.RLIMIT_RTPRIO, 0},
		{unix.RLIMIT_NICE, 0},
		{unix.RLIMIT_STACK, 8 << 20},
	}
	for i, l := range limits {
		limits[i].value = atMostOwn(l.resource, l.value)
	}
	return limits
}

// rlimits are a command's own RLIMIT_NOFILE and RLIMIT_NPROC, lower than
// sandbox-init's, so that they can change while the jail lives. The second counts
// the processes of the tenant's own range of ids and so is a bound of its own
// where there is no pids controller.
func (l Limits) rlimits() (files, pids uint64) {
	return atMostOwn(unix.RLIMIT_NOFILE, uint64(l.OpenFiles)), atMostOwn(unix.RLIMIT_NPROC, uint64(l.Pids))
}

// atMostOwn lowers a limit to the daemon's own, above which it could not be set.
func atMostOwn(resource int, value uint64) uint64 {
	var own unix.Rlimit
	if err := unix.Getrlimit(resource, &own); err != nil {
		return value
	}
	return min(value, own.Max)
}
