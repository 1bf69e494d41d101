package jail

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/cgroup"
	"sandboxd/jail/wire"
)

const (
	// maxRunning is how many commands of a jail may run at once; each costs the
	// daemon three descriptors.
	maxRunning = 512
	// maxEnded is how many ended commands a jail remembers, with their output.
	maxEnded = 256
	// execTimeout bounds the time between the request and execve.
	execTimeout = 20 * time.Second

	// execSettles is for how long at most a command holds up the making of spare
	// jails, from its start.
	execSettles = 50 * time.Millisecond

	workspacePath = "/workspace"
)

// Exec starts a command and returns once the program runs. An ID that is taken
// returns its process with ErrExists: nothing runs twice. A program that cannot
// be started is a *StartError and leaves no process.
func (j *Jail) Exec(ctx context.Context, spec ExecSpec) (*Process, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	if spec.ID == "" {
		var b [8]byte
		rand.Read(b[:])
		spec.ID = "x-" + hex.EncodeToString(b[:])
	}
	release, err := j.awake(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	who, err := j.account(ctx, spec.User)
	if err != nil {
		return nil, err
	}
	p, err := j.reserve(spec, who)
	if err != nil {
		return p, err
	}
	p.quiet = j.m.pool.disturb()
	p.settles = time.AfterFunc(execSettles, p.quiet)
	if err := p.start(ctx); err != nil {
		j.forget(p)
		return nil, err
	}
	return p, nil
}

// reserve gives the command its number and its place.
func (j *Jail) reserve(spec ExecSpec, who account) (*Process, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state != StateRunning {
		return nil, ErrGone
	}
	if old := j.byID[spec.ID]; old != nil {
		return old, ErrExists
	}
	if j.running >= maxRunning {
		return nil, ErrBusy
	}
	j.running++
	j.lastNum++
	p := newProcess(j, j.lastNum, spec)
	p.who = who
	j.byID[spec.ID], j.byNum[p.num] = p, p
	j.order = append(j.order, p)
	return p, nil
}

// forget removes a command that never ran.
func (j *Jail) forget(p *Process) {
	p.fail()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running--
	delete(j.byID, p.spec.ID)
	// Sandbox-init may yet report on it: its number stays known until then.
	if i := slices.Index(j.order, p); i >= 0 {
		j.order = slices.Delete(j.order, i, i+1)
	}
}

// ended makes room when a command has its last event.
func (j *Jail) ended(p *Process) {
	var drop []*Process
	j.mu.Lock()
	j.running--
	over := len(j.order) - j.running - maxEnded
	for i := 0; i < len(j.order) && over > 0; {
		if !j.order[i].over() {
			i++
			continue
		}
		drop = append(drop, j.order[i])
		delete(j.byID, j.order[i].spec.ID)
		j.order = slices.Delete(j.order, i, i+1)
		over--
	}
	j.mu.Unlock()
	for _, old := range drop {
		old.hist.close()
	}
}

// Process finds a command by its ID.
func (j *Jail) Process(id string) (*Process, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p, ok := j.byID[id]
	return p, ok
}

// Processes lists the commands that run and those that are remembered, oldest
// first.
func (j *Jail) Processes() []ProcessInfo {
	j.mu.Lock()
	all := slices.Clone(j.order)
	j.mu.Unlock()
	out := make([]ProcessInfo, 0, len(all))
	for _, p := range all {
		out = append(out, p.Info())
	}
	return out
}

// start makes the command's group and pipes, asks sandbox-init for it, and
// waits until the program runs.
func (p *Process) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	p.j.collectLingering()
	if err := p.makeGroup(); err != nil {
		return err
	}
	gate, err := p.request()
	if err != nil {
		p.removeGroup()
		return err
	}
	err = p.passGate(ctx, gate)
	// Not before it runs: the child still writes to its end.
	defer gate.Close()
	if err == nil {
		err = p.awaitStart(ctx)
	}
	if err != nil {
		// Its group has nothing in it but this child, if at all.
		p.group.kill()
		p.group.await(context.WithoutCancel(ctx), cgroup.Populated, 0)
		p.removeGroup()
		return err
	}
	p.begin()
	return nil
}

func (p *Process) makeGroup() error {
	if err := p.group.make(); err != nil {
		return err
	}
	if err := p.j.giveProcs(p.group); err != nil {
		p.removeGroup()
		return err
	}
	return nil
}

// request sends the command to sandbox-init and returns our end of its gate.
func (p *Process) request() (*os.File, error) {
	gate, childGate, err := gatePair()
	if err != nil {
		return nil, err
	}
	files := []*os.File{nil, nil, nil, nil, childGate}
	var ours []*os.File
	defer func() { closeAll(ours) }()
	message := p.message()
	err = p.descriptors(files, &ours)
	ours = append(ours, childGate)
	if err == nil {
		err = p.j.conn.Send(message.Marshal(), files...)
	}
	if err != nil {
		gate.Close()
		return nil, fmt.Errorf("jail: exec: %w", err)
	}
	return gate, nil
}

// descriptors fills in what the child gets; ours are to be closed here once
// they are sent.
func (p *Process) descriptors(files []*os.File, ours *[]*os.File) error {
	group, err := os.OpenFile(string(p.group), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	*ours = append(*ours, group)
	files[3] = group
	if p.spec.Terminal != nil {
		return p.terminalFiles(files, ours)
	}
	for i, f := range p.spec.Files {
		switch {
		case f != nil:
			files[i] = f
		case i == 0 && !p.spec.Stdin:
			files[i] = p.j.m.null
		default:
			child, own, err := p.pipeFor(i)
			if err != nil {
				return err
			}
			*ours = append(*ours, child)
			files[i] = child
			p.pipes[i] = own
		}
	}
	p.spec.Files = [3]*os.File{} // the caller's
	return nil
}

// pipeFor makes a pipe of which the child gets the end that it reads (stdin) or
// writes, and we the other, non-blocking. Its user owns it, for programs open it
// anew: by /dev/stdout.
func (p *Process) pipeFor(i int) (child, own *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	c, o := fds[1], fds[0]
	if i == 0 {
		c, o = o, c
	}
	err = unix.Fchown(c, int(p.j.uid+p.who.uid), int(p.j.uid+p.who.gid))
	if err == nil {
		err = unix.SetNonblock(o, true)
	}
	if err != nil {
		unix.Close(c)
		unix.Close(o)
		return nil, nil, err
	}
	return os.NewFile(uintptr(c), "child's pipe"), os.NewFile(uintptr(o), "pipe"), nil
}

func (p *Process) message() *wire.Exec {
	layers := []map[string]string{baseEnv(p.j.tenant), p.j.templateEnv(), p.who.env(), terminalEnv(p.spec.Terminal), p.j.spec.Env, p.spec.Env}
	env, byName := environ(layers...)
	cwd := p.spec.Cwd
	if cwd == "" {
		cwd = p.j.workingDir()
	}
	p.spec.Env = maps.Clone(p.spec.Env)
	limits := p.j.Limits()
	files, pids := limits.rlimits()
	if slices.Contains(p.j.m.host.controllers, "pids") {
		// Its group's limit is to be met first: that one tells whom it refused.
		pids += initThreads
	}
	m := &wire.Exec{
		ID: p.num, Argv: p.spec.Argv, Env: env, Cwd: cwd, Paths: searchPaths(p.spec.Argv[0], byName["PATH"]),
		Terminal: p.spec.Terminal != nil, OpenFiles: files, Pids: pids, UID: p.who.uid, GID: p.who.gid,
	}
	if p.spec.writesFile() {
		// It is on a disk that the tenant's quota knows nothing of.
		m.FileBytes = uint64(limits.Disk)
	}
	return m
}

// passGate lets the child go; the first one of a jail, and the first that is its
// root, are looked at before.
func (p *Process) passGate(ctx context.Context, gate *os.File) error {
	j := p.j
	j.verifyMu.Lock()
	defer j.verifyMu.Unlock()
	verified := &j.verified
	if p.who.uid == 0 {
		verified = &j.verifiedRoot
	}
	if !*verified {
		pid, err := awaitPeer(ctx, gate)
		if err != nil {
			// It ended before: the reason comes from sandbox-init.
			return nil
		}
		if err := j.verifyCommand(pid, &p.who); err != nil {
			go j.Destroy(context.WithoutCancel(ctx), "self_check")
			return err
		}
		*verified = true
	}
	if _, err := gate.Write([]byte{1}); err != nil {
		return nil
	}
	return nil
}

// awaitStart waits for sandbox-init's word on it.
func (p *Process) awaitStart(ctx context.Context) error {
	select {
	case err := <-p.started:
		return err
	case <-p.j.ending:
		return ErrGone
	case <-ctx.Done():
		return fmt.Errorf("jail: exec: %w", ctx.Err())
	}
}
