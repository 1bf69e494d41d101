package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"syscall"

	"sandboxd/internal/confine"
	"sandboxd/internal/ipc"
	"sandboxd/netproxy/internal/control"
	"sandboxd/secrets"
)

// controlFD is where the daemon puts the socket.
const controlFD = 3

// resolverFiles are all that the process can open once it is confined.
var resolverFiles = []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"}

// Main is the role. It returns the process's exit code.
func Main() int {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	// The library's own messages can quote what a server sent.
	stdlog.SetOutput(io.Discard)
	conn, err := ipc.FromFD(controlFD, control.MaxFrame)
	if err != nil {
		log.Error("no control socket", "error", err)
		return 2
	}
	p := &process{log: log, set: &secrets.Set{}}
	p.peer = control.NewPeer(conn, p.handle)
	_ = p.peer.Run(context.Background()) // ends when the daemon closes its end
	if failed := p.failed.Load(); failed != nil {
		log.Error("the proxy could not start", "error", *failed)
		return 1
	}
	if server := p.server.Load(); server != nil {
		server.Close()
	}
	return 0
}

// process is the daemon's counterpart. Requests before Hello set it up; after
// it, the process is confined and serves.
type process struct {
	log    *slog.Logger
	peer   *control.Peer
	set    *secrets.Set
	shown  certificate
	key    *secrets.Key // of the store; nil without one
	server atomic.Pointer[Server]
	failed atomic.Pointer[error]
}

func (p *process) handle(ctx context.Context, method string, body json.RawMessage, files []*os.File) (any, []*os.File, error) {
	out, used, err := p.dispatch(method, body, files)
	if !used {
		control.CloseAll(files)
	}
	return out, nil, err
}

var errOrder = errors.New("not at this point")

// dispatch answers the daemon; used says that the files have a new owner.
func (p *process) dispatch(method string, body json.RawMessage, files []*os.File) (out any, used bool, err error) {
	server := p.server.Load()
	if method == control.MethodStored { // at the start and later
		out, err := p.stored(body)
		return out, false, err
	}
	if (server == nil) != (method == control.MethodCredentials || method == control.MethodStoreKey || method == control.MethodHello) &&
		method != control.MethodPreviewTLS {
		return nil, false, errOrder
	}
	switch method {
	case control.MethodStoreKey:
		if len(files) != 1 {
			return nil, false, errOrder
		}
		p.key, err = secrets.ReadKey(files[0])
		return nil, false, err
	case control.MethodSeal:
		out, err := p.seal(body, files)
		return out, false, err
	case control.MethodCredentials:
		in, err := decode[control.Credentials](body)
		if err != nil || len(in.Names) != len(files) {
			return nil, false, errors.Join(err, errOrder)
		}
		for i, name := range in.Names {
			err = errors.Join(err, p.set.Read(name, files[i]))
		}
		return nil, true, err
	case control.MethodPreviewTLS:
		if len(files) != 2 {
			return nil, false, errOrder
		}
		return nil, false, p.shown.read(files[0], files[1])
	case control.MethodHello:
		in, err := decode[control.Hello](body)
		if err == nil {
			err = p.start(in, files)
		}
		if err != nil {
			p.failed.Store(&err)
		}
		return nil, false, err
	case control.MethodAuthority:
		if len(files) != 1 {
			return nil, false, errOrder
		}
		a, err := newAuthority("", files[0])
		if err != nil {
			return nil, false, err
		}
		return control.Attached{CA: a.pem}, false, nil
	case control.MethodAttach:
		in, err := decode[control.Attach](body)
		if err != nil {
			return nil, false, err
		}
		ca, err := server.Attach(in.Link, in.Tenant, files)
		return control.Attached{CA: ca}, true, err
	case control.MethodServe:
		in, err := decode[control.Serve](body)
		if err != nil || len(files) != 1 {
			return nil, false, errors.Join(err, errOrder)
		}
		return nil, true, server.Serve(in, files[0])
	case control.MethodFetch:
		in, err := decode[control.Fetch](body)
		if err != nil || len(files) != 1 {
			return nil, false, errors.Join(err, errOrder)
		}
		return nil, true, server.Fetch(in.Tenant, in.RunID, files[0])
	}
	return nil, false, change(server, method, body)
}

// change handles the messages without files.
func change(server *Server, method string, body json.RawMessage) error {
	switch method {
	case control.MethodForget:
		in, err := decode[control.Forget](body)
		if err == nil {
			server.secrets.Remove(in.Name)
		}
		return err
	case control.MethodDetach:
		in, err := decode[control.Detach](body)
		if err == nil {
			server.Detach(in.Link)
		}
		return err
	case control.MethodUnserve:
		in, err := decode[control.Unserve](body)
		if err == nil {
			server.Unserve(in)
		}
		return err
	case control.MethodRules:
		in, err := decode[control.Rules](body)
		if err == nil {
			err = server.SetRules(in.Tenant, in.Rules, in.Limits)
		}
		return err
	case control.MethodServers:
		in, err := decode[control.Servers](body)
		if err == nil {
			server.resolver.set(in.Servers)
		}
		return err
	case control.MethodRemove:
		in, err := decode[control.Remove](body)
		if err == nil {
			server.Remove(in.Tenant)
		}
		return err
	case control.MethodExpose:
		in, err := decode[control.Expose](body)
		if err == nil && server.previews != nil {
			server.previews.expose(in)
		}
		return err
	case control.MethodUnexpose:
		in, err := decode[control.Unexpose](body)
		if err == nil && server.previews != nil {
			server.previews.unexpose(in.Label, nil)
		}
		return err
	}
	return fmt.Errorf("unknown request %q", method)
}

func decode[T any](body json.RawMessage) (v T, err error) {
	err = json.Unmarshal(body, &v)
	return v, err
}

// start confines the process; only then does it serve.
func (p *process) start(h control.Hello, files []*os.File) error {
	server, err := NewServer(h, p.set, &daemonSide{p.peer}, p.log)
	if err != nil {
		return err
	}
	if h.Packages {
		server.packages = newPackages(&daemonSide{p.peer})
	}
	var listener net.Listener
	if h.Preview {
		if len(files) != 1 {
			return errOrder
		}
		if listener, err = net.FileListener(files[0]); err != nil {
			return err
		}
		server.previews = newPreviews(&h, &p.shown, server.backend, p.log)
	}
	if err := warmUp(); err != nil {
		return err
	}
	var readable []string
	for _, f := range resolverFiles {
		if _, err := os.Stat(f); err == nil {
			readable = append(readable, f)
		}
	}
	report, err := confine.Apply(confine.Profile{
		Name: "netproxy", ReadOnly: readable, Connect: true, Seccomp: confine.ProxyFilter(),
	})
	if err != nil {
		return err
	}
	p.log.Debug("confined", "landlock", report.LandlockABI, "threads", report.Threads)
	if listener != nil {
		go server.previews.serve(listener)
	}
	p.server.Store(server)
	return nil
}

// warmUp does once what the standard library does on first use with files or
// calls that the confined process does not have: the network stack's own idea
// of the host, and the local time zone.
func warmUp() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	return l.Close()
}

// daemonSide is the Backend over the control socket.
type daemonSide struct{ peer *control.Peer }

func (d *daemonSide) Record(ctx context.Context, list []control.Decision) []error {
	var out control.Recorded
	_, err := d.peer.Call(ctx, control.MethodDecisions, list, &out)
	if err == nil && len(out.Refused) == 0 {
		return nil
	}
	errs := make([]error, len(list))
	for i := range list {
		if v, ok := out.Refused[i]; ok && v.Budget != "" {
			errs[i] = &budgetError{v}
		} else if ok {
			errs[i] = errUnrecorded
		}
		if err != nil {
			errs[i] = errUnrecorded
		}
	}
	return errs
}

func (d *daemonSide) OpenToken(ctx context.Context, credential string) (net.Conn, error) {
	files, err := d.peer.Call(ctx, control.MethodToken, control.Token{Credential: credential}, nil)
	if err != nil {
		return nil, err
	}
	defer control.CloseAll(files)
	if len(files) != 1 {
		return nil, syscall.ECONNABORTED
	}
	return net.FileConn(files[0])
}

func (d *daemonSide) Active(label string) {
	_ = d.peer.Notify(control.MethodActive, control.DialJail{Label: label})
}

func (d *daemonSide) DialJail(ctx context.Context, label string) (net.Conn, error) {
	files, err := d.peer.Call(ctx, control.MethodDialJail, control.DialJail{Label: label}, nil)
	if err != nil {
		var remote *control.RemoteError
		if errors.As(err, &remote) && remote.Code == "not_listening" {
			return nil, ErrNotListening
		}
		return nil, err
	}
	defer control.CloseAll(files)
	if len(files) != 1 {
		return nil, syscall.ECONNABORTED
	}
	return net.FileConn(files[0])
}
