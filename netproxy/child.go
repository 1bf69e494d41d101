package netproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/confine"
	"sandboxd/internal/ipc"
	"sandboxd/netproxy/internal/control"
)

// A child is the proxy process.
type child struct {
	cmd     *exec.Cmd
	peer    *control.Peer
	started time.Time
	done    chan struct{}
	end     string // how it ended; read after done
}

// startChild starts the role: unprivileged from birth, in namespaces of its
// own except for the network's (it dials from the host's), with nothing but
// its control socket. Not in a pid namespace of its own: libpsx, which confines
// all threads, finds them in /proc by the process's own number.
func startChild(cfg Config, handle control.Handler) (*child, error) {
	ours, theirs, err := ipc.Pair()
	if err != nil {
		return nil, fmt.Errorf("netproxy: %w", err)
	}
	defer theirs.Close()
	exe := cfg.Exe
	if exe == "" {
		exe = "/proc/self/exe"
	}
	cmd := &exec.Cmd{
		Path: exe, Args: []string{"sandboxd", "role", "netproxy"}, Dir: "/",
		ExtraFiles: []*os.File{theirs}, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		},
	}
	if err := confine.Start(cmd, cfg.UID, cfg.GID); err != nil {
		ours.Close()
		return nil, fmt.Errorf("netproxy: start the proxy process: %w", err)
	}
	c := &child{cmd: cmd, started: time.Now(), done: make(chan struct{})}
	c.peer = control.NewPeer(ipc.NewConn(ours, control.MaxFrame), handle)
	go func() {
		_ = c.peer.Run(context.Background())
	}()
	go func() {
		err := cmd.Wait()
		c.peer.Close()
		c.end = "exit status 0"
		if err != nil {
			c.end = err.Error()
		}
		close(c.done)
	}()
	return c, nil
}

// stop ends the process: by closing its socket first, so that it can close
// what it holds, and by force if it takes longer.
func (c *child) stop(ctx context.Context) error {
	c.peer.Close()
	grace := time.NewTimer(2 * time.Second)
	defer grace.Stop()
	select {
	case <-c.done:
		return nil
	case <-grace.C:
	case <-ctx.Done():
	}
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("netproxy: end the proxy process: %w", err)
	}
	<-c.done
	return nil
}

// handle answers the proxy process. It parses hostile input all day, so what it
// asks is checked: it can put decisions on record, connect to ports that are
// published, have tokens made as the policy says and keep packages, and nothing
// else.
func (p *Proxy) handle(ctx context.Context, method string, body json.RawMessage, files []*os.File) (any, []*os.File, error) {
	control.CloseAll(files)
	switch method {
	case control.MethodDecisions:
		var list []Decision
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, nil, &control.RemoteError{Code: "invalid"}
		}
		for i := range list {
			list[i].Time = list[i].Time.Local()
		}
		return verdicts(p.cfg.OnDecisions(ctx, list)), nil, nil
	case control.MethodDialJail:
		var in control.DialJail
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, nil, &control.RemoteError{Code: "invalid"}
		}
		return p.dialJail(ctx, in.Label)
	case control.MethodToken:
		var in control.Token
		if err := json.Unmarshal(body, &in); err != nil || p.cfg.OpenToken == nil {
			return nil, nil, &control.RemoteError{Code: "invalid"}
		}
		f, err := p.cfg.OpenToken(ctx, in.Credential)
		if err != nil {
			p.cfg.Log.Warn("a credential's token could not be asked for", "error", err)
			return nil, nil, &control.RemoteError{Code: "no_token"}
		}
		return nil, []*os.File{f}, nil
	case control.MethodActive:
		var in control.DialJail
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, nil, &control.RemoteError{Code: "invalid"}
		}
		p.previewActive(ctx, in.Label)
		return nil, nil, nil
	}
	if out, files, err, ok := p.handlePackages(ctx, method, body); ok {
		return out, files, err
	}
	return nil, nil, &control.RemoteError{Code: "unknown"}
}

// verdicts are those of the decisions that may not be carried out.
func verdicts(errs []error) control.Recorded {
	var out control.Recorded
	for i, err := range errs {
		if err == nil {
			continue
		}
		v := control.Verdict{}
		var over *BudgetError
		if errors.As(err, &over) {
			v = control.Verdict{Budget: over.Budget, Allowed: over.Allowed, Retry: over.Retry}
		}
		if out.Refused == nil {
			out.Refused = map[int]control.Verdict{}
		}
		out.Refused[i] = v
	}
	return out
}

func (p *Proxy) previewActive(ctx context.Context, label string) {
	p.mu.Lock()
	v, ok := p.previews[label]
	p.mu.Unlock()
	if !ok || p.cfg.PreviewActive == nil {
		return
	}
	// Other notices wait for this one.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := p.cfg.PreviewActive(ctx, v.Tenant); err != nil {
		p.cfg.Log.Debug("preview", "tenant", v.Tenant, "port", v.Port, "error", err)
	}
}

func (p *Proxy) dialJail(ctx context.Context, label string) (any, []*os.File, error) {
	p.mu.Lock()
	v, ok := p.previews[label]
	p.mu.Unlock()
	if !ok || p.cfg.DialJail == nil || time.Now().After(v.Expires) {
		return nil, nil, &control.RemoteError{Code: "gone"}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	f, err := p.cfg.DialJail(ctx, v.Tenant, v.Port)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil, &control.RemoteError{Code: "not_listening"}
	}
	if err != nil {
		p.cfg.Log.Debug("preview", "tenant", v.Tenant, "port", v.Port, "error", err)
		return nil, nil, &control.RemoteError{Code: "unreachable"}
	}
	return nil, []*os.File{f}, nil
}
