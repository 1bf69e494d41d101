package jail

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/internal/ipc"
	"sandboxd/jail/sys"
	"sandboxd/jail/wire"
)

// clone starts sandbox-init's process; it waits at the gate before it has done
// anything.
func (j *Jail) clone() (*sys.Child, *os.File, error) {
	ours, theirs, err := ipc.Pair()
	if err != nil {
		return nil, nil, fmt.Errorf("jail: %w", err)
	}
	defer theirs.Close()
	j.conn = ipc.NewConn(ours, wire.MaxFrame)
	gate, childGate, err := gatePair()
	if err != nil {
		return nil, nil, err
	}
	defer childGate.Close()
	p := j.initProgram(int(theirs.Fd()), int(childGate.Fd()))
	cg, err := unix.Open(string(j.cgroup.child("init")), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		gate.Close()
		return nil, nil, fmt.Errorf("jail: cgroup: %w", err)
	}
	defer unix.Close(cg)
	var child *sys.Child
	j.m.spawn.do(func() { child, err = j.startOnSpawner(p, cg) })
	if err != nil {
		gate.Close()
		return nil, nil, startError("clone", err)
	}
	j.pid = child.Pid
	j.init = newInitProcess(child)
	return child, gate, nil
}

// startOnSpawner runs on the spawner's thread. The network namespace is the one
// that the thread is in at the clone: owned by the host's user namespace, so
// that the jail's root has no power over it.
func (j *Jail) startOnSpawner(p *sys.Program, cgroupFD int) (*sys.Child, error) {
	flags := uint64(namespaces)
	if j.spec.NetNS == nil {
		flags |= unix.CLONE_NEWNET
		return p.Start(flags, cgroupFD)
	}
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("jail: network namespace: %w", err)
	}
	defer unix.Close(home)
	if err := unix.Setns(int(j.spec.NetNS.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("jail: network namespace: %w", err)
	}
	child, err := p.Start(flags, cgroupFD)
	// Nothing else is cloned from this thread without setns or NEWNET before,
	// so staying would be harmless; it would only keep the namespace alive.
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		j.m.log.Error("spawner could not leave a jail's network namespace", "tenant", j.tenant, "error", back)
	}
	return child, err
}

// initProgram is what happens between clone3 and execve of sandbox-init.
func (j *Jail) initProgram(socket, gate int) *sys.Program {
	null := int(j.m.null.Fd())
	p := &sys.Program{}
	p.Descriptors(null, null, null, socket, int(j.m.initFile.Fd()), gate)
	p.CloseOnExec(initExe)
	p.CallMin("gate", 1, unix.SYS_READ, initGate, p.Bytes(make([]byte, 1)), 1)
	p.Call("setsid", unix.SYS_SETSID)
	p.IDs(0, 0)
	p.Call("pdeathsig", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	p.Call("umask", unix.SYS_UMASK, 0o077)
	// The kernel's default again: the daemon's timers are coarser.
	p.Call("timer slack", unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 50_000, 0, 0, 0)
	// A kernel without keyrings has none to leave.
	p.Try("keyring", unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0)
	for resource, value := range j.rlimits() {
		p.Rlimit(resource, value)
	}
	p.CapCarry(initCaps, j.m.host.lastCap)
	p.Signals(true)
	p.Call("exec", unix.SYS_EXECVEAT, initExe, p.String(""), p.Strings([]string{"sandbox-init"}), p.Strings(nil), unix.AT_EMPTY_PATH)
	return p
}

// rlimits hold for everything in the jail. NPROC counts the processes of the
// tenant's own range of ids and so is a bound of its own where there is no pids
// controller. There is none for the address space: node and Wasm reserve
// terabytes that they never touch.
func (j *Jail) rlimits() map[int]uint64 {
	limits := map[int]uint64{
		unix.RLIMIT_CORE:       0,
		unix.RLIMIT_NOFILE:     uint64(j.limits.OpenFiles),
		unix.RLIMIT_NPROC:      uint64(j.limits.Pids),
		unix.RLIMIT_MEMLOCK:    64 << 10,
		unix.RLIMIT_MSGQUEUE:   819200,
		unix.RLIMIT_SIGPENDING: 1024,
		unix.RLIMIT_RTPRIO:     0,
		unix.RLIMIT_NICE:       0,
		unix.RLIMIT_STACK:      8 << 20,
	}
	for resource, value := range limits {
		// Above the daemon's own it could not be set.
		var own unix.Rlimit
		if err := unix.Getrlimit(resource, &own); err == nil {
			limits[resource] = min(value, own.Max)
		}
	}
	return limits
}
