package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// echo answers an upgrade and then each byte with itself.
const echo = `import socket, threading
s = socket.create_server(("127.0.0.1", 8000))
print("listening", flush=True)
def serve(c):
    while b"\r\n\r\n" not in c.recv(65536): pass
    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    while True:
        b = c.recv(1)
        if not b: return
        c.sendall(b)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()`

// TestPreviewBytesWakeAFrozenJail, on a connection that was open before, too.
func TestPreviewBytesWakeAFrozenJail(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	exec(t, who, api.ExecRequest{Argv: []string{"python3", "-c", echo}, Background: true, ExecID: "echo"})
	want(t, "POST", jailPath(who)+"/processes/echo/wait", api.WaitRequest{LogRegexp: "listening", Timeout: policy.Duration(harness.Scale(10 * time.Second))}, nil)
	var port api.Port
	want(t, "POST", jailPath(who)+"/ports/8000", api.PortRequest{}, &port)
	c, err := net.Dial("tcp", sys.Preview)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(harness.Scale(30 * time.Second))); err != nil {
		t.Fatal(err)
	}
	host := strings.TrimSuffix(strings.TrimPrefix(port.URL, "http://"), "/")
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", host)
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	for range 2 {
		// The daemon is told of bytes twice a second at most; no idle time is so short.
		time.Sleep(600 * time.Millisecond)
		var j api.Jail
		want(t, "POST", jailPath(who)+"/freeze", nil, &j)
		if j.State != "frozen" {
			t.Fatalf("it is %s", j.State)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		if _, err := io.ReadFull(r, b); err != nil || b[0] != 'x' {
			t.Fatalf("%q, %v", b, err)
		}
		want(t, "GET", jailPath(who), nil, &j)
		if j.State != "running" || j.IdleAt.IsZero() {
			t.Errorf("after a byte it is %s", j.State)
		}
	}
}
