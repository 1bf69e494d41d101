package netproxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandboxd/policy"
)

// echoSocket answers WebSockets by saying everything back.
func echoSocket(rw http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{Subprotocols: []string{"chat"}, InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer c.CloseNow()
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, b); err != nil {
			return
		}
	}
}

// A WebSocket passes where the rule says so, through TLS that is intercepted and
// in clear text; it is counted, limited, and cut with its rule.
func TestWebSocket(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("chat.test", echoSocket)
	p := w.plainUpstream("plain.test", echoSocket)
	grant := func(r *policy.Rule) {
		r.Methods, r.WebSocket = []string{"GET"}, true
		r.Limits = &policy.EgressLimits{BytesIn: 10_000}
	}
	clear := func(r *policy.Rule) { r.Scheme, r.WebSocket = "http", true }
	j := w.jail("alice", u.rule(grant), p.rule(clear))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dial := func(url string) (*websocket.Conn, error) {
		c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: j.client(), Subprotocols: []string{"chat"}})
		if err == nil {
			t.Cleanup(func() { c.CloseNow() })
		}
		return c, err
	}
	say := func(c *websocket.Conn, s string) error {
		if err := c.Write(ctx, websocket.MessageText, []byte(s)); err != nil {
			return err
		}
		_, b, err := c.Read(ctx)
		if err == nil && string(b) != s {
			t.Errorf("%d bytes came back as %d", len(s), len(b))
		}
		return err
	}
	for _, url := range []string{u.url("/ws"), fmt.Sprintf("http://plain.test:%d/ws", p.port)} {
		c, err := dial(url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if c.Subprotocol() != "chat" {
			t.Errorf("subprotocol %q", c.Subprotocol())
		}
		for range 3 {
			if err := say(c, strings.Repeat("x", 200)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	d := w.find(func(d Decision) bool { return d.Host == "chat.test" && d.Phase == "finished" && d.Status == 101 })
	if d.BytesOut < 600 || d.BytesIn < 600 || d.Reason != "" {
		t.Errorf("record %+v", d)
	}
	c, err := dial(u.url("/ws"))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err = say(c, strings.Repeat("y", 4000)); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("more came in than the rule allows")
	}
	w.find(func(d Decision) bool { return d.Reason == "bytes_in_limit" && d.Limit == "rule" })
	// The grant goes, and with it what is open.
	if c, err = dial(u.url("/ws")); err != nil {
		t.Fatal(err)
	}
	if err := say(c, "open"); err != nil {
		t.Fatal(err)
	}
	w.rules("alice", u.rule(func(r *policy.Rule) { r.Methods = []string{"GET"} }))
	for ended := time.Now().Add(5 * time.Second); say(c, "still open") == nil; {
		if time.Now().After(ended) {
			t.Fatal("it outlives its grant")
		}
	}
	w.find(func(d Decision) bool { return d.Status == 101 && d.Reason == "revoked" })
	if _, err := dial(u.url("/ws")); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("without a grant: %v", err)
	}
}

// What looks at methods and paths is not got around by fields that some servers
// take for either.
func TestOverridesAreNotSent(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Methods = []string{"GET"} }))
	req, err := http.NewRequest("GET", u.url("/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"X-HTTP-Method-Override", "X-Original-URL", "X-Rewrite-Url", "x_method_override", "X-Forwarded-Host", "Proxy-Authorization", "Forwarded"} {
		req.Header[name] = []string{"DELETE"}
	}
	req.Header.Set("X-Api-Version", "2")
	resp, err := j.client().Do(req)
	readAll(t, resp, err)
	seen := u.requests()
	if len(seen) != 1 {
		t.Fatalf("%d requests", len(seen))
	}
	for name, values := range seen[0].Header {
		if values[0] == "DELETE" {
			t.Errorf("%s was sent on", name)
		}
	}
	if seen[0].Header.Get("X-Api-Version") != "2" {
		t.Error("an ordinary field was not")
	}
}
