package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"sandboxd/internal/cgroup"
	"sandboxd/internal/ipc"
	"sandboxd/jail/sys"
	"sandboxd/jail/wire"
)

// A place is a jail without a tenant: a cgroup, and in it, in namespaces of its
// own, a sandbox-init that has done what is the same for all jails and waits to
// be told whose it is. The ids of its user namespace are not mapped yet, so it
// is nobody, with no right over anything but its own namespaces.
type place struct {
	m      *Manager
	cgroup group
	layer  *os.File // a mount; see makeLayer
	conn   *ipc.Conn
	child  *sys.Child
	init   *initProcess
	pid    int
}

// build makes all of it, in the network namespace netNS (nil: a new one). What
// it leaves behind after an error is the caller's to undo.
func (p *place) build(netNS *os.File) error {
	return p.m.do([]step{
		{"cgroup", p.makeCgroups},
		{"clone", func() error { return p.clone(netNS) }},
		{"prepare", func() error { return p.conn.Send(p.m.prepare.Marshal()) }},
	}, nil)
}

// makeCgroups makes the group before anything is in it: moving a process later,
// or passing controllers on above one, waits for every processor (milliseconds),
// cloning into a group does not.
func (p *place) makeCgroups() error {
	if err := p.cgroup.make(); err != nil {
		return err
	}
	if err := p.cgroup.enable(p.m.host.controllers); err != nil {
		return err
	}
	return p.cgroup.child("init").make()
}

// clone starts sandbox-init.
func (p *place) clone(netNS *os.File) error {
	ours, theirs, err := ipc.Pair()
	if err != nil {
		return fmt.Errorf("jail: %w", err)
	}
	defer theirs.Close()
	p.conn = ipc.NewConn(ours, wire.MaxFrame)
	program := p.m.initProgram(int(theirs.Fd()))
	program.Break(p.m.breakInit)
	cg, err := unix.Open(string(p.cgroup.child("init")), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("jail: cgroup: %w", err)
	}
	defer unix.Close(cg)
	p.m.spawn.do(func() { p.child, err = p.m.startOnSpawner(program, cg, netNS) })
	if err != nil {
		return err
	}
	p.pid = p.child.Pid
	p.init = newInitProcess(p.child)
	return nil
}

// failure ends a sandbox-init that has failed, or is not to go on, and prefers the
// reason that it left behind.
func (p *place) failure(err error) error {
	if p.init == nil {
		return err
	}
	p.init.kill()
	<-p.init.gone
	if own := p.child.Finish(); own != nil {
		return named("init", own)
	}
	if said := p.lastWords(); said != nil {
		return said
	}
	return err
}

// lastWords is what a sandbox-init that is gone has said of its end, nil if that
// was heard before.
func (p *place) lastWords() error {
	for range 3 {
		payload, files, err := p.conn.Recv()
		closeAll(files)
		if err != nil {
			return nil
		}
		if m, err := wire.Unmarshal(payload); err == nil {
			if m, ok := m.(*wire.Failed); ok {
				return &StartError{Step: m.Step, Errno: unix.Errno(m.Errno), Text: m.Text}
			}
		}
	}
	return nil
}

// mapIDs gives the user namespace the tenant's range of ids.
func (p *place) mapIDs(uid uint32) error {
	mapping := fmt.Sprintf("0 %d %d\n", uid, uidRange)
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := p.m.writeProc(strconv.Itoa(p.pid)+"/"+file, mapping); err != nil {
			return err
		}
	}
	return nil
}

// discard undoes build, whatever part of it was done.
func (p *place) discard(ctx context.Context) error {
	errs := []error{p.cgroup.kill()}
	if p.init != nil {
		p.init.kill() // it may not have reached its group
		select {
		case <-p.init.gone:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("jail: sandbox-init does not end: %w", ctx.Err()))
		}
		p.init.pidfd.Close()
	}
	if p.conn != nil {
		p.conn.Close()
	}
	errs = append(errs, p.cgroup.await(ctx, cgroup.Populated, 0), p.cgroup.remove())
	p.closeLayer()
	return errors.Join(errs...)
}

// closeLayer lets go of the layer; a jail that has it mounted keeps it.
func (p *place) closeLayer() {
	if p.layer != nil {
		p.layer.Close()
	}
}
