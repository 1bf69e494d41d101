package netproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"sandboxd/netproxy/internal/control"
)

// State says how the proxy process fares.
type State struct {
	// Running says that a process serves; Pid is its number.
	Running bool
	Pid     int
	// Since is when that began, or when the last process ended.
	Since time.Time
	// Restarts is how many processes took the place of one that died.
	Restarts int
	// Problem says why the last one ended or did not start; "" if none did.
	Problem string
}

// How a process that dies is started again: at once when it had served for a
// while, else after pauses that double.
const (
	steady    = 30 * time.Second
	firstWait = 100 * time.Millisecond
	longest   = 15 * time.Second
	bootTime  = 20 * time.Second
)

// State returns how the proxy process fares.
func (p *Proxy) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// boot starts a process, gives it all that p holds and lets it serve.
func (p *Proxy) boot(ctx context.Context) error {
	p.mu.Lock()
	cfg := p.cfg
	p.mu.Unlock()
	c, err := startChild(cfg, p.handle)
	if err != nil {
		return err
	}
	if err := p.startChild(ctx, c); err != nil {
		return errors.Join(err, c.stop(ctx))
	}
	p.gate.Lock()
	defer p.gate.Unlock()
	if err := p.tellAll(ctx, c.peer); err != nil {
		return errors.Join(err, c.stop(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return errors.Join(ErrClosed, c.stop(ctx))
	}
	p.child = c
	p.state.Running, p.state.Pid, p.state.Since = true, c.cmd.Process.Pid, c.started
	close(p.up)
	return nil
}

// tellAll gives a new process what an earlier one had: rules, links with their
// services, published ports. p.gate is held.
func (p *Proxy) tellAll(ctx context.Context, peer *control.Peer) error {
	p.mu.Lock()
	var grants []control.Rules
	for _, g := range p.grants {
		grants = append(grants, g)
	}
	var links []*Link
	for _, l := range p.links {
		if l.attached {
			links = append(links, l)
		}
	}
	var exposed []control.Expose
	for label, v := range p.previews {
		if time.Now().Before(v.Expires) {
			exposed = append(exposed, v.message(label))
		}
	}
	p.mu.Unlock()
	if err := p.sendStored(ctx, peer); err != nil {
		return err
	}
	for _, g := range grants {
		if _, err := peer.Call(ctx, control.MethodRules, g, nil); fatal(err) {
			return asked(control.MethodRules, err)
		} else if err != nil { // it grants the tenant nothing, as before
			p.cfg.Log.Error("a tenant's egress rules are not usable", "tenant", g.Tenant, "error", err)
		}
	}
	for _, l := range links {
		if err := l.handOver(ctx, peer); err != nil {
			return asked(control.MethodAttach, err)
		}
		if err := l.serveAll(ctx, peer); err != nil {
			return err
		}
	}
	for _, e := range exposed {
		if _, err := peer.Call(ctx, control.MethodExpose, e, nil); err != nil {
			return asked(control.MethodExpose, err)
		}
	}
	return nil
}

// fatal tells a process that is gone or stuck from one that refuses something.
func fatal(err error) bool {
	var remote *control.RemoteError
	return err != nil && !errors.As(err, &remote)
}

// supervise starts a new process whenever one dies, until Close.
func (p *Proxy) supervise() {
	defer close(p.ended)
	wait := time.Duration(0)
	for {
		c := p.now()
		<-c.done
		if !p.fell(c) {
			return
		}
		if time.Since(c.started) >= steady {
			wait = 0
		}
		for {
			if !p.pause(wait) {
				return
			}
			wait = min(max(2*wait, firstWait), longest)
			if p.again() {
				break
			}
		}
	}
}

// fell notes that the process has died; false means that this was asked for.
func (p *Proxy) fell(c *child) bool {
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return false
	}
	p.child, p.up = nil, make(chan struct{})
	p.state.Running, p.state.Pid, p.state.Since = false, 0, time.Now()
	p.state.Problem = "it ended: " + c.end
	s := p.state
	p.mu.Unlock()
	p.cfg.Log.Error("the egress proxy has died; nothing passes until a new one serves", "pid", c.cmd.Process.Pid, "state", c.end)
	p.tellState(s)
	return true
}

// again tries to start a process.
func (p *Proxy) again() bool {
	ctx, cancel := context.WithTimeout(context.Background(), bootTime)
	defer cancel()
	began := time.Now()
	err := p.boot(ctx)
	p.mu.Lock()
	if err != nil {
		p.state.Problem = "it did not start: " + err.Error()
	} else {
		p.state.Restarts++
	}
	s, closing := p.state, p.closing
	p.mu.Unlock()
	switch {
	case closing:
		return err == nil
	case err != nil:
		p.cfg.Log.Error("the egress proxy could not be started again", "error", err)
	default:
		p.cfg.Log.Warn("a new egress proxy serves", "pid", s.Pid, "restarts", s.Restarts, "took", time.Since(began))
	}
	p.tellState(s)
	return err == nil
}

func (p *Proxy) tellState(s State) {
	if p.cfg.OnState != nil {
		p.cfg.OnState(s)
	}
}

// pause waits; false means that p is being closed.
func (p *Proxy) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.stop:
		return false
	}
}

// now is the process that serves, nil if none does.
func (p *Proxy) now() *child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
}

// serving waits for a process that serves.
func (p *Proxy) serving(ctx context.Context) (*child, error) {
	for {
		p.mu.Lock()
		c, up, closing := p.child, p.up, p.closing
		p.mu.Unlock()
		switch {
		case closing:
			return nil, ErrClosed
		case c != nil:
			return c, nil
		}
		select {
		case <-up:
		case <-p.stop:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrClosed, ctx.Err())
		}
	}
}

// call asks the process that serves, or the next one.
func (p *Proxy) call(ctx context.Context, method string, in, out any, files ...*os.File) error {
	c, err := p.serving(ctx)
	if err != nil {
		return err
	}
	_, err = c.peer.Call(ctx, method, in, out, files...)
	return asked(method, err)
}

// tell makes a change to what p holds and passes it on. A process that is not
// there now is told when it is: until then nothing passes anyway.
func (p *Proxy) tell(ctx context.Context, method string, in any, change func()) error {
	p.gate.RLock()
	defer p.gate.RUnlock()
	p.mu.Lock()
	closing, c := p.closing, p.child
	change()
	p.mu.Unlock()
	if closing {
		return ErrClosed
	}
	return p.told(ctx, c, method, in)
}

// told passes something on that p holds already; p.gate is held.
func (p *Proxy) told(ctx context.Context, c *child, method string, in any, files ...*os.File) error {
	if c == nil {
		return nil
	}
	_, err := c.peer.Call(ctx, method, in, nil, files...)
	if errors.Is(err, control.ErrClosed) {
		return nil
	}
	return asked(method, err)
}

// asked gives the error of a call its form.
func asked(method string, err error) error {
	if errors.Is(err, control.ErrClosed) {
		return ErrClosed
	}
	if err != nil {
		return fmt.Errorf("netproxy: %s: %w", method, err)
	}
	return nil
}
