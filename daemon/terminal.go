package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/coder/websocket"

	"sandboxd/daemon/api"
	"sandboxd/jail"
)

// maxTyped bounds one frame of input.
const maxTyped = 64 << 10

func sizeOf(t *api.TTY) jail.Size { return jail.Size{Cols: uint16(t.Cols), Rows: uint16(t.Rows)} }

// terminalOf is the command's terminal.
func terminalOf(e *execution) (*jail.Terminal, error) {
	if t := e.proc.Terminal(); t != nil {
		return t, nil
	}
	return nil, &api.Error{Code: api.CodeConflict, Message: "the command has no terminal", Hint: "start it with \"tty\": {\"cols\": …, \"rows\": …}"}
}

var errEnded = &api.Error{Code: api.CodeConflict, Message: "the command has ended"}

// handleResize is POST …/processes/{exec}/resize.
func (d *Daemon) handleResize(q *request) error {
	var size api.TTY
	if err := q.decode(&size); err != nil {
		return err
	}
	return d.awake(q, func(_ *tenantJail, e *execution) error {
		t, err := terminalOf(e)
		if err != nil {
			return err
		}
		if err := t.Resize(sizeOf(&size)); errors.Is(err, jail.ErrGone) {
			return errEnded
		} else if err != nil {
			return err
		}
		return q.noContent()
	})
}

// typeBody types what POST …/stdin brings.
func (d *Daemon) typeBody(q *request, t *jail.Terminal) error {
	_, err := io.Copy(typist{q.ctx(), t}, q.http.Body)
	if err == nil && q.flag("close") {
		err = t.TypeEnd(q.ctx())
	}
	if errors.Is(err, jail.ErrGone) {
		return errEnded
	}
	if err != nil {
		return err
	}
	return q.noContent()
}

// typist is a terminal's keyboard as a writer.
type typist struct {
	ctx context.Context
	t   *jail.Terminal
}

func (w typist) Write(b []byte) (int, error) { return w.t.Type(w.ctx, b) }

// handleTTY is the WebSocket of a command's terminal. What the command writes is
// kept by its history, within that one's bounds, so that a viewer who is slow
// holds up nothing, and one frame is all that is held for him.
func (d *Daemon) handleTTY(q *request) error {
	j, e, err := d.process(q)
	if err != nil {
		return err
	}
	t, err := terminalOf(e)
	if err != nil {
		return err
	}
	after, err := q.integer("after", 0, 1<<53)
	if err != nil {
		return err
	}
	if !strings.EqualFold(q.http.Header.Get("Upgrade"), "websocket") {
		return &api.Error{Code: api.CodeInvalidRequest, HTTPStatus: http.StatusUpgradeRequired, Field: "upgrade", Message: "this is a WebSocket", Hint: "without one: …/events, …/stdin and …/resize"}
	}
	if e.running() {
		if err := j.use(q.ctx()); err != nil {
			return err
		}
		defer j.release()
	}
	conn, err := websocket.Accept(q.w, q.http, nil)
	if err != nil {
		// It has answered already.
		d.log.Debug("a terminal's connection was refused", "error", err)
		return nil
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxTyped)
	ctx, cancel := context.WithCancel(q.ctx())
	defer cancel()
	typing := make(chan struct{})
	go func() {
		defer close(typing)
		defer cancel()
		d.typeFrames(ctx, conn, t)
	}()
	d.showFrames(ctx, conn, e, uint64(after))
	cancel()
	<-typing
	return nil
}

// showFrames sends the command's events until it ends or the viewer goes.
func (d *Daemon) showFrames(ctx context.Context, conn *websocket.Conn, e *execution, after uint64) {
	for ev, err := range e.proc.Events(ctx, after, true) {
		if err != nil {
			if ctx.Err() == nil {
				conn.Close(websocket.StatusPolicyViolation, reason(toAPI(err)))
			}
			return
		}
		if err := showFrame(ctx, conn, e, &ev); err != nil {
			d.log.Debug("a terminal's viewer went away", "exec", e.id, "error", err)
			return
		}
	}
	conn.Close(websocket.StatusNormalClosure, "the command has ended")
}

func showFrame(ctx context.Context, conn *websocket.Conn, e *execution, ev *jail.Event) error {
	kind, data := websocket.MessageBinary, ev.Data
	if ev.Kind != jail.EventStdout {
		out, err := e.event(ctx, ev)
		if err != nil {
			return err
		}
		if data, err = json.Marshal(out); err != nil {
			return err
		}
		kind = websocket.MessageText
	}
	ctx, cancel := context.WithTimeout(ctx, slowReader)
	defer cancel()
	return conn.Write(ctx, kind, data)
}

// typeFrames takes input and control until the connection ends.
func (d *Daemon) typeFrames(ctx context.Context, conn *websocket.Conn, t *jail.Terminal) {
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			_, err = t.Type(ctx, data)
		} else {
			err = control(data, t)
		}
		if errors.Is(err, jail.ErrGone) {
			continue // the end comes as an event
		}
		if err != nil {
			conn.Close(websocket.StatusPolicyViolation, reason(toAPI(err)))
			return
		}
	}
}

func control(data []byte, t *jail.Terminal) error {
	var c api.TerminalControl
	if err := api.Decode(data, &c); err != nil {
		return err
	}
	return t.Resize(sizeOf(c.Resize))
}

// reason fits an error into a close frame.
func reason(e *api.Error) string {
	text := e.Message
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	return clip(strings.ToValidUTF8(text, "?"), 100)
}
