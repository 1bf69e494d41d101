package jail

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/ipc"
	"sandboxd/jail/sys"
	"sandboxd/jail/wire"
)

// homeDir is the tenant's home inside.
const homeDir = "/home/user"

// startTimeout bounds what sandbox-init may take until it is ready. It is far
// above what it takes on a loaded machine.
const startTimeout = 20 * time.Second

// initCaps are what sandbox-init is born with, in the jail's user namespace
// only: mounts, names and namespaces' limits, the network of its own, what the
// overlay (which acts for whoever mounted it) needs to copy a file up, and what
// it keeps (see cmd/sandbox-init).
var initCaps = sys.CapSet(unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_NET_ADMIN,
	unix.CAP_DAC_OVERRIDE, unix.CAP_CHOWN, unix.CAP_FOWNER, unix.CAP_FSETID,
	unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL)

// keptCaps are what sandbox-init has left when it is ready.
var keptCaps = sys.CapSet(unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL)

const (
	namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

	initGate = 5 // the child's descriptors: null, null, null, socket, program, gate
	initExe  = 4
)

// Create builds a tenant's jail. If there is one it is returned with ErrExists.
// When Create fails nothing is left behind.
func (m *Manager) Create(ctx context.Context, spec Spec) (*Jail, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	j := newJail(m, spec)
	// Teardown, which Close may begin at any time, waits for the build.
	j.buildMu.Lock()
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, ErrGone
	}
	if old, ok := m.byName[spec.Tenant]; ok {
		m.mu.Unlock()
		return old, ErrExists
	}
	m.byName[spec.Tenant] = j
	m.mu.Unlock()
	err := j.buildUntil(ctx)
	j.buildMu.Unlock()
	if err != nil {
		j.abandon()
		return nil, err
	}
	return j, nil
}

// buildUntil gives the build a deadline, and ends it when the jail is destroyed
// meanwhile.
func (j *Jail) buildUntil(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	go func() {
		select {
		case <-j.ending:
			cancel()
		case <-ctx.Done():
		}
	}()
	return j.build(ctx)
}

// build does the whole start sequence. What it leaves in j is undone by
// teardown, whatever step fails.
func (j *Jail) build(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if j.uid, err = j.m.uids.claim(j.tenant); err != nil {
		return err
	}
	if err := j.makeCgroups(); err != nil {
		return err
	}
	child, gate, err := j.clone()
	if err != nil {
		return err
	}
	defer gate.Close()
	if err := j.letGo(child, gate); err != nil {
		return j.initFailure(child, err)
	}
	// While sandbox-init starts, what it will mount is made.
	if err := j.makeFolders(); err != nil {
		return err
	}
	trees, err := j.trees()
	if err != nil {
		return err
	}
	err = j.conn.Send(j.config().Marshal(), trees...)
	closeAll(trees)
	if err != nil {
		return j.initFailure(child, err)
	}
	if err := j.awaitReady(ctx); err != nil {
		return j.initFailure(child, err)
	}
	child.Finish()
	if err := j.verify(); err != nil {
		return err
	}
	j.goroutines.Go(j.receive)
	j.spec.NetNS = nil // the caller's
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state != StateCreating {
		return ErrGone
	}
	j.state = StateRunning
	return nil
}

// makeFolders makes the tenant's own (kept) and the jail's (not kept).
func (j *Jail) makeFolders() error {
	for _, dir := range []string{j.workspaceDir(), j.homeDir()} {
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = os.Lchown(dir, int(j.uid+tenantUID), int(j.uid+tenantGID))
		}
		if err == nil {
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			return fmt.Errorf("jail: workspace: %w", err)
		}
	}
	if j.spec.Ephemeral {
		// Sweep has only this to know it by.
		if err := touch(filepath.Join(j.tenantDir(), ephemeralMark)); err != nil {
			return err
		}
	}
	layer := filepath.Join(j.runDir(), "layer")
	for _, dir := range []string{j.runDir(), layer, filepath.Join(layer, "upper"), filepath.Join(layer, "work")} {
		if err := makeDir(dir); err != nil {
			return fmt.Errorf("jail: folders: %w", err)
		}
	}
	for _, dir := range []string{"upper", "work"} {
		if err := os.Lchown(filepath.Join(layer, dir), int(j.uid), int(j.uid)); err != nil {
			return fmt.Errorf("jail: folders: %w", err)
		}
	}
	return j.writeEtc(filepath.Join(layer, "upper", "etc"))
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("jail: %w", err)
	}
	return f.Close()
}

// writeEtc writes the part of /etc that is the jail's own.
func (j *Jail) writeEtc(etc string) error {
	for _, dir := range []string{etc, filepath.Join(etc, "ssl"), filepath.Join(etc, "ssl/certs")} {
		// Owned by the jail's root: the overlay marks folders that it merges.
		err := makeDir(dir)
		if err == nil {
			err = os.Lchown(dir, int(j.uid), int(j.uid))
		}
		if err != nil {
			return fmt.Errorf("jail: /etc: %w", err)
		}
	}
	var resolv strings.Builder
	for _, r := range j.spec.Resolvers {
		fmt.Fprintf(&resolv, "nameserver %s\n", r)
	}
	if err := makeFile(filepath.Join(etc, "resolv.conf"), []byte(resolv.String())); err != nil {
		return fmt.Errorf("jail: /etc: %w", err)
	}
	bundle, err := j.m.bundle(j.spec.CABundle)
	if err != nil {
		return err
	}
	if err := os.Link(bundle, filepath.Join(etc, certificate)); err != nil {
		return fmt.Errorf("jail: certificates: %w", err)
	}
	return nil
}

// bundle returns a file with the certificates (the host's own if there are
// none), one for each content: it is linked into jails, where it is read-only
// because it belongs to an id that they do not have.
func (m *Manager) bundle(pem []byte) (string, error) {
	if len(pem) == 0 {
		var err error
		if pem, err = os.ReadFile(certificateAbs); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("jail: certificates: %w", err)
		}
	}
	sum := sha256.Sum256(pem)
	path := filepath.Join(m.bundleDir(), hex.EncodeToString(sum[:16])+".pem")
	if _, err := os.Lstat(path); err == nil {
		return path, nil
	}
	tmp, err := os.CreateTemp(m.bundleDir(), "new")
	if err != nil {
		return "", fmt.Errorf("jail: certificates: %w", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if _, err := tmp.Write(pem); err != nil {
		return "", fmt.Errorf("jail: certificates: %w", err)
	}
	if err := tmp.Chmod(0o644); err != nil {
		return "", fmt.Errorf("jail: certificates: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return "", fmt.Errorf("jail: certificates: %w", err)
	}
	return path, nil
}

// makeCgroups makes the jail's group with its limits, before anything is in it:
// moving a process later, or passing controllers on above one, waits for every
// processor (milliseconds), cloning into a group does not.
func (j *Jail) makeCgroups() error {
	if err := j.cgroup.make(); err != nil {
		return err
	}
	if err := j.cgroup.limit(j.limits, j.m.host.controllers); err != nil {
		return err
	}
	if err := j.cgroup.enable(j.m.host.controllers); err != nil {
		return err
	}
	if err := j.cgroup.child("init").make(); err != nil {
		return err
	}
	// Sandbox-init clones commands from init/ into exec-N/; the kernel asks for
	// the right to write the members of both and of what they have in common.
	return j.giveProcs(j.cgroup)
}

func (j *Jail) giveProcs(g group) error {
	if err := os.Lchown(filepath.Join(string(g), "cgroup.procs"), int(j.uid), -1); err != nil {
		return fmt.Errorf("jail: cgroup: %w", err)
	}
	return nil
}

// trees are the mounts that sandbox-init gets.
func (j *Jail) trees() (out []*os.File, err error) {
	for _, dir := range []string{filepath.Join(j.runDir(), "layer"), j.workspaceDir(), j.homeDir()} {
		fd, err := sys.Tree(unix.AT_FDCWD, dir, false, attrPlain)
		if err != nil {
			closeAll(out)
			return nil, fmt.Errorf("jail: %w", err)
		}
		out = append(out, os.NewFile(uintptr(fd), dir))
	}
	return out, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

func (j *Jail) config() *wire.Config {
	return &wire.Config{
		Version: wire.Version, Hostname: hostname(j.tenant),
		TmpBytes: uint64(j.limits.Disk), TmpInodes: uint64(max(j.limits.Disk/8192, 1024)),
		Opt: j.m.host.opt, Loopback: j.spec.NetNS == nil,
		MaskFiles: j.m.host.maskFiles, MaskDirs: j.m.host.maskDirs, ReadOnly: j.m.host.readOnly,
		UID: tenantUID, GID: tenantGID,
		InitFilter: j.m.initBPF, ExecFilter: j.m.execBPF,
	}
}

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

// letGo maps the ids of the waiting child and opens the gate.
func (j *Jail) letGo(child *sys.Child, gate *os.File) error {
	pid := strconv.Itoa(child.Pid)
	mapping := fmt.Sprintf("0 %d %d\n", j.uid, uidRange)
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := j.m.writeProc(pid+"/"+file, mapping); err != nil {
			return err
		}
	}
	if _, err := gate.Write([]byte{1}); err != nil {
		return fmt.Errorf("jail: gate: %w", err)
	}
	return nil
}

// awaitReady waits until sandbox-init has sent the root and is ready.
func (j *Jail) awaitReady(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { j.conn.Close() })
	defer stop()
	for {
		payload, files, err := j.conn.Recv()
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		m, err := wire.Unmarshal(payload)
		if err != nil {
			closeAll(files)
			return fmt.Errorf("jail: %w", err)
		}
		switch m := m.(type) {
		case *wire.Root:
			if j.root == nil && len(files) == 1 {
				j.root = files[0]
				continue
			}
		case *wire.Ready:
			if j.root != nil && len(files) == 0 && m.Version == wire.Version {
				j.landlock = int(m.LandlockABI)
				return nil
			}
		case *wire.Failed:
			closeAll(files)
			return &StartError{Step: m.Step, Errno: unix.Errno(m.Errno), Text: m.Text}
		}
		closeAll(files)
		return fmt.Errorf("jail: sandbox-init answered %T with %d descriptors", m, len(files))
	}
}

// initFailure ends a child that did not become ready and prefers the reason
// that it left behind.
func (j *Jail) initFailure(child *sys.Child, err error) error {
	j.init.kill()
	<-j.init.gone
	if own := child.Finish(); own != nil {
		var step *sys.StepError
		if errors.As(own, &step) && step.Errno != unix.EPIPE {
			return startError("init", own)
		}
	}
	var start *StartError
	if errors.As(err, &start) {
		return err
	}
	return &StartError{Step: "init", Text: err.Error()}
}

// startError makes a StartError of what the clone returned.
func startError(step string, err error) error {
	e := &StartError{Step: step, Text: err.Error()}
	var child *sys.StepError
	if errors.As(err, &child) {
		e.Step, e.Errno, e.Text = child.Step, child.Errno, ""
	}
	return e
}
