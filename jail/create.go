package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

	initExe = 4 // the child's descriptors: null, null, null, socket, program
)

// Create builds a tenant's jail. If there is one it is returned with ErrExists.
// When Create fails nothing is left behind.
func (m *Manager) Create(ctx context.Context, spec Spec) (*Jail, error) {
	defer m.pool.disturb()()
	j, err := m.reserve(spec)
	if err != nil {
		if spec.Spare != nil {
			spec.Spare.Discard()
		}
		return j, err
	}
	err = j.buildUntil(ctx)
	j.buildMu.Unlock()
	if err != nil {
		j.abandon()
		if spec.Spare != nil {
			spec.Spare.failed()
		}
		return nil, err
	}
	return j, nil
}

// reserve takes the tenant's place in the table. The jail's buildMu is held.
func (m *Manager) reserve(spec Spec) (*Jail, error) {
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
func (j *Jail) build(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p := &place{m: j.m, cgroup: j.cgroup}
	settle := func() error { return p.build(j.spec.NetNS) }
	layer := func() (err error) { p.layer, err = j.m.makeLayer(j.spec.Resolvers, j.spec.CABundle); return err }
	if j.spec.Spare != nil {
		p = j.spec.Spare.place
		settle = func() error { return nil }
		layer = settle
	}
	defer func() { p.closeLayer() }()
	err := j.m.do([]step{
		{"template", j.openTemplate},
		{"uid range", func() (err error) { j.uid, err = j.m.uids.claim(j.tenant); return err }},
		{"place", settle},
		// While sandbox-init starts, what it will mount is made.
		{"layer", layer},
		{"layer's owner", func() error { return j.ownLayer(layerPath(p.layer)) }},
		{"folders", j.makeFolders},
		{"cgroup limits", func() error { return p.cgroup.limit(j.limits, j.m.host.controllers) }},
		// Sandbox-init clones commands from init/ into exec-N/; the kernel asks for
		// the right to write the members of both and of what they have in common.
		{"cgroup owner", func() error { return j.giveProcs(j.cgroup) }},
		// From here on sandbox-init has the tenant's ids.
		{"id maps", func() error { return p.mapIDs(j.uid) }},
		{"configuration", func() error { return j.configure(p) }},
		{"init", func() error { return j.awaitReady(ctx, p) }},
		{"self-check", j.verify},
	}, func() { j.conn, j.init, j.pid = p.conn, p.init, p.pid })
	if err != nil {
		err = p.failure(err)
		var start *StartError
		if errors.As(err, &start) {
			start.Jail = true
		}
		return err
	}
	j.goroutines.Go(j.receive)
	if slices.Contains(j.m.host.controllers, "memory") {
		j.goroutines.Go(j.watchMemory)
	}
	j.goroutines.Go(j.notices)
	j.spec.NetNS, j.spec.Spare = nil, nil // the caller's; used up
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state != StateCreating {
		return ErrGone
	}
	j.state = StateRunning
	return nil
}

// configure tells sandbox-init whose it is.
func (j *Jail) configure(p *place) error {
	files, err := j.filesTree()
	if err != nil {
		return fmt.Errorf("jail: %w", err)
	}
	own := os.NewFile(uintptr(files), "files")
	defer own.Close()
	layers, err := j.layerTrees(p.pid)
	if err != nil {
		return err
	}
	defer closeAll(layers)
	cfg := j.config()
	cfg.Layers, cfg.WritableRoot = uint64(len(layers)), j.spec.WritableRoot
	if err := p.conn.Send(cfg.Marshal(), p.layer, own); err != nil {
		return err
	}
	for some := range slices.Chunk(layers, ipc.MaxFiles) {
		if err := p.conn.Send((&wire.Layers{}).Marshal(), some...); err != nil {
			return err
		}
	}
	return nil
}

func (j *Jail) giveProcs(g group) error {
	if err := os.Lchown(filepath.Join(string(g), "cgroup.procs"), int(j.uid), -1); err != nil {
		return fmt.Errorf("jail: cgroup: %w", err)
	}
	return nil
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
		Hostname: hostname(j.tenant),
		TmpBytes: uint64(j.limits.tmp()), TmpInodes: uint64(max(j.limits.tmp()/8192, 1024)),
		Loopback: j.spec.ownNetwork(),
	}
}

// awaitReady waits until sandbox-init has sent the root and is ready.
func (j *Jail) awaitReady(ctx context.Context, p *place) error {
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	defer stop()
	for {
		payload, files, err := p.conn.Recv()
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
			if j.root == nil && len(files) == 2 {
				j.root, j.listener = files[0], files[1]
				continue
			}
		case *wire.Ready:
			if j.root != nil && len(files) == 0 && m.Version == wire.Version {
				j.landlock = int(m.LandlockABI)
				p.child.Finish()
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
