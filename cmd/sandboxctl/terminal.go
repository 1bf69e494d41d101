package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sandboxd/daemon/api"
)

// errHungUp says that a signal, or the end of this terminal, ended sandboxctl.
var errHungUp = errors.New("hung up")

// terminalSize fits this terminal's size into what the API takes.
func terminalSize(f *os.File) *api.TTY {
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return &api.TTY{Cols: 80, Rows: 24}
	}
	clamp := func(n int) int { return min(max(n, 1), 10000) }
	return &api.TTY{Cols: clamp(cols), Rows: clamp(rows)}
}

// execOnTerminal runs the command with this terminal as its own. For the API it
// runs in the background: it has no time limit that was not asked for, and a
// connection that breaks off does not end it.
func (a *app) execOnTerminal(ctx context.Context, tenant string, req *api.ExecRequest, named bool) error {
	in, ok := a.in.(*os.File)
	if !ok || !isTerminal(a.in) || !isTerminal(a.out) || a.json {
		return usagef("exec -t needs a terminal as standard input and output, and no --json; leave -t out, or use -d")
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
	defer stop()
	req.TTY, req.Background, req.Stdin = terminalSize(in), true, false
	if name := os.Getenv("TERM"); name != "" && req.Env["TERM"] == "" {
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		req.Env["TERM"] = name
	}
	if _, err := a.client.Exec(ctx, tenant, req); err != nil {
		return err
	}
	result, err := a.attach(ctx, in, tenant, req.ExecID)
	if errors.Is(err, errHungUp) && !named {
		// Nobody knows its name: it would stay for ever.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, a.client.Signal(ctx, tenant, req.ExecID, "HUP"))
	}
	if err != nil {
		return err
	}
	return a.execExit(result)
}

// attach shows the command's terminal on this one until the command ends. This
// one is as it was when attach returns.
func (a *app) attach(ctx context.Context, in *os.File, tenant, id string) (*api.Process, error) {
	state, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("this terminal: %w", err)
	}
	defer term.Restore(int(in.Fd()), state)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	keys := make(chan []byte)
	go readKeys(ctx, cancel, in, keys)
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, unix.SIGWINCH)
	defer signal.Stop(sizes)
	v := &view{a: a, in: in, keys: keys, sizes: sizes}
	for {
		conn, err := a.client.Terminal(ctx, tenant, id, v.seq)
		if err == nil {
			err = v.follow(ctx, conn)
		}
		switch {
		case v.result != nil:
			return v.result, nil
		case ctx.Err() != nil:
			return nil, errHungUp
		case websocket.CloseStatus(err) == websocket.StatusPolicyViolation:
			return nil, err
		case v.moved:
			v.moved = false // it broke off: go on where it was
		default:
			return nil, err
		}
	}
}

// readKeys hands on what is typed. The end of this terminal ends it all.
func readKeys(ctx context.Context, cancel context.CancelCauseFunc, in *os.File, keys chan<- []byte) {
	for {
		b := make([]byte, 4096)
		n, err := in.Read(b)
		if n > 0 {
			select {
			case keys <- b[:n]:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			cancel(errHungUp)
			return
		}
	}
}

// view is a command's terminal, over as many connections as it takes.
type view struct {
	a      *app
	in     *os.File
	keys   <-chan []byte
	sizes  <-chan os.Signal
	seq    uint64
	moved  bool // since the connection was made
	result *api.Process
}

// follow serves one connection until it ends.
func (v *view) follow(ctx context.Context, conn *websocket.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	sent := make(chan struct{})
	defer func() { cancel(); conn.CloseNow(); <-sent }()
	go func() {
		defer close(sent)
		// What reads notices that it failed.
		_ = v.send(ctx, conn)
	}()
	for v.result == nil {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		if err := v.show(kind, data); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) show(kind websocket.MessageType, data []byte) error {
	v.seq++
	v.moved = true
	if kind == websocket.MessageBinary {
		_, err := v.a.out.Write(data)
		return err
	}
	var e api.Event
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("an event: %w", err)
	}
	v.seq, v.result = e.Seq, e.Exec
	return nil
}

// send passes keys and sizes on; the size first, for it may be another one's.
func (v *view) send(ctx context.Context, conn *websocket.Conn) error {
	if err := v.resize(ctx, conn); err != nil {
		return err
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-v.keys:
			err = conn.Write(ctx, websocket.MessageBinary, b)
		case <-v.sizes:
			err = v.resize(ctx, conn)
		}
		if err != nil {
			return err
		}
	}
}

func (v *view) resize(ctx context.Context, conn *websocket.Conn) error {
	text, err := json.Marshal(api.TerminalControl{Resize: terminalSize(v.in)})
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, text)
}
