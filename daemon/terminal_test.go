package daemon

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandboxd/daemon/api"
)

// viewer follows a terminal as the API tells: each frame is one event.
type viewer struct {
	t    *testing.T
	conn *websocket.Conn
	seq  uint64
	out  string
	exec *api.Process
}

func attach(t *testing.T, d *testDaemon, id string, after uint64) *viewer {
	t.Helper()
	conn, err := d.api.Terminal(within(t), "t-a", id, after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return &viewer{t: t, conn: conn, seq: after}
}

// until reads frames until the output holds text, or with "" until the result.
func (v *viewer) until(text string) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), 20*time.Second)
	defer cancel()
	for text == "" && v.exec == nil || text != "" && !strings.Contains(v.out, text) {
		kind, data, err := v.conn.Read(ctx)
		if err != nil {
			v.t.Fatalf("waiting for %q: %v after %q", text, err, v.out)
		}
		v.seq++
		if kind == websocket.MessageBinary {
			v.out += string(data)
			continue
		}
		var ev api.Event
		if err := json.Unmarshal(data, &ev); err != nil || ev.Seq != v.seq {
			v.t.Fatalf("event %d: %s, %v", v.seq, data, err)
		}
		v.exec = ev.Exec
	}
}

func (v *viewer) send(kind websocket.MessageType, text string) {
	v.t.Helper()
	if err := v.conn.Write(v.t.Context(), kind, []byte(text)); err != nil {
		v.t.Fatal(err)
	}
}

func TestTerminal(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := sh("stty size; while read -r line; do echo \"got $line\"; stty size; done; exit 5")
	req.TTY, req.Background, req.ExecID = &api.TTY{Cols: 100, Rows: 40}, true, "term"
	p, err := d.api.Exec(ctx, "t-a", req)
	if err != nil || !p.TTY {
		t.Fatalf("%+v, %v", p, err)
	}
	one := attach(t, d, "term", 0)
	one.until("40 100\r\n")
	other := attach(t, d, "term", 0)
	other.until("40 100\r\n")
	one.send(websocket.MessageBinary, "first\r")
	one.until("got first\r\n40 100\r\n")
	other.until("got first\r\n40 100\r\n")
	// A connection that breaks off loses nothing.
	one.conn.CloseNow()
	other.send(websocket.MessageText, `{"resize":{"cols":50,"rows":20}}`)
	other.send(websocket.MessageBinary, "second\r")
	other.until("got second\r\n20 50\r\n")
	again := attach(t, d, "term", one.seq)
	again.until("got second\r\n20 50\r\n")
	if one.out+again.out != other.out {
		t.Errorf("with a break: %q, without: %q", one.out+again.out, other.out)
	}
	if err := d.api.Resize(ctx, "t-a", "term", api.TTY{Cols: 60, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	if err := d.api.Stdin(ctx, "t-a", "term", strings.NewReader("third\r"), false); err != nil {
		t.Fatal(err)
	}
	again.until("got third\r\n30 60\r\n")
	if err := d.api.Stdin(ctx, "t-a", "term", strings.NewReader(""), true); err != nil {
		t.Fatal(err)
	}
	again.until("")
	if x := again.exec; x.ExitCode == nil || *x.ExitCode != 5 || x.Receipt == nil {
		t.Errorf("%+v", x)
	}
	if _, _, err := again.conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("after the end: %v", err)
	}
	wantError(t, d.api.Resize(ctx, "t-a", "term", api.TTY{Cols: 60, Rows: 30}), api.CodeConflict, "")
	wantError(t, d.api.Stdin(ctx, "t-a", "term", strings.NewReader("x"), false), api.CodeConflict, "")
	late := attach(t, d, "term", 0)
	late.until("")
	if late.out != one.out+again.out {
		t.Errorf("of the dead: %q, of the living: %q", late.out, one.out+again.out)
	}
}

func TestTerminalRefusals(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	plain, term := sh("exec sleep 1000"), sh("exec sleep 1000")
	plain.Background, plain.ExecID = true, "plain"
	term.Background, term.ExecID, term.TTY = true, "term", &api.TTY{Cols: 1, Rows: 1}
	for _, req := range []*api.ExecRequest{plain, term} {
		if _, err := d.api.Exec(ctx, "t-a", req); err != nil {
			t.Fatal(err)
		}
	}
	_, err := d.api.Terminal(ctx, "t-a", "plain", 0)
	wantError(t, err, api.CodeConflict, "")
	wantError(t, d.api.Resize(ctx, "t-a", "plain", api.TTY{Cols: 1, Rows: 1}), api.CodeConflict, "")
	_, err = d.api.Terminal(ctx, "t-a", "none", 0)
	wantError(t, err, api.CodeNotFound, "")
	wantError(t, d.api.Resize(ctx, "t-a", "term", api.TTY{Rows: 1}), api.CodeInvalidRequest, "cols")
	for _, text := range []string{`{}`, `x`, `{"resize":{"cols":0,"rows":1}}`, `{"resize":{"cols":1,"rows":1},"more":1}`} {
		v := attach(t, d, "term", 1)
		v.send(websocket.MessageText, text)
		if _, _, err := v.conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf("%s: %v", text, err)
		}
	}
	v := attach(t, d, "term", 1)
	v.send(websocket.MessageBinary, strings.Repeat("x", maxTyped+1))
	if _, _, err := v.conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("a frame that is too large: %v", err)
	}
	// A viewer of a command that is killed sees its end.
	v = attach(t, d, "term", 1)
	if err := d.api.Kill(ctx, "t-a", "term"); err != nil {
		t.Fatal(err)
	}
	v.until("")
	if v.exec.Signal != "SIGKILL" {
		t.Errorf("%+v", v.exec)
	}
}

// A viewer who does not read holds up neither the command nor the others.
func TestTerminalSlowViewer(t *testing.T) {
	d := startDaemon(t)
	req := sh("read -r go; seq 300000 | tail -c 1500000; echo last")
	req.TTY, req.Background, req.ExecID = &api.TTY{Cols: 80, Rows: 24}, true, "flood"
	if _, err := d.api.Exec(within(t), "t-a", req); err != nil {
		t.Fatal(err)
	}
	slow, fast := attach(t, d, "flood", 0), attach(t, d, "flood", 0)
	slow.send(websocket.MessageBinary, "go\r")
	fast.until("")
	if !strings.HasSuffix(fast.out, "300000\r\nlast\r\n") || *fast.exec.ExitCode != 0 {
		t.Fatalf("%d bytes, %+v", len(fast.out), fast.exec)
	}
	slow.until("")
	if slow.out != fast.out {
		t.Errorf("%d bytes for the slow one, %d for the other", len(slow.out), len(fast.out))
	}
}
