package daemon

import (
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandboxd/policy"
)

func TestSocketIsMadeSafely(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	s, err := ListenUnix(path, false)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o660 || st.Mode().Type() != fs.ModeSocket {
		t.Fatalf("the socket is %v, %v", st.Mode(), err)
	}
	if _, err := ListenUnix(path, false); err == nil {
		t.Fatal("a living socket was taken over")
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Fatalf("the refused taker broke the socket: %v", err)
	} else {
		c.Close()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Fatalf("%d files are left, %v", len(left), err)
	}
}

func TestSocketOfACrashedDaemonIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	s, err := ListenUnix(path, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestSocketReplacesNothingElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	if err := os.WriteFile(path, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path, true); err == nil {
		t.Fatal("a file was replaced by a socket")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "keep" {
		t.Fatalf("the file is %q, %v", b, err)
	}
}

func TestPeerIsWhoTheKernelSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p, err := identify(server, true)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if int(p.caller.UID) != os.Getuid() || int(p.caller.GID) != os.Getgid() || int(p.caller.Pid) != os.Getpid() || !p.caller.Admin {
		t.Errorf("got %+v", p.caller)
	}
	for _, g := range groups {
		if !slices.Contains(p.caller.Groups, uint32(g)) {
			t.Errorf("group %d is missing in %v", g, p.caller.Groups)
		}
	}
	tcp, _ := net.Pipe()
	if _, err := identify(tcp, true); err == nil {
		t.Error("a connection without credentials was identified")
	}
}

func TestUnitFromCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/agent.service\n":                                 "agent.service",
		"0::/system.slice/agent.service/worker/1\n":                        "agent.service",
		"12:cpu:/x.service\n0::/user.slice/user-1.slice/session-3.scope\n": "session-3.scope",
		"0::/user.slice/user@1.service/app.slice/app-x.service\n":          "app-x.service",
		"0::/\n": "", "": "", "12:cpu:/x.service\n": "", "0::../..\n": "", "0::\n": "",
	} {
		if got := unitFromCgroup([]byte(text)); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
}

func TestConnectionEndCallsOnce(t *testing.T) {
	p := &peer{}
	called := make(chan string, 3)
	p.whenClosed(func() { called <- "a" })
	release := p.whenClosed(func() { called <- "released" })
	release()
	p.connectionClosed()
	p.connectionClosed()
	p.whenClosed(func() { called <- "late" })
	got := []string{<-called, <-called}
	slices.Sort(got)
	if !slices.Equal(got, []string{"a", "late"}) {
		t.Errorf("called %v", got)
	}
}

// TestOneUserDoesNotTakeAllConnections: whoever may connect could otherwise
// keep everybody else out, without any right.
func TestOneUserDoesNotTakeAllConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := ListenUnix(path, false)
	if err != nil {
		t.Fatal(err)
	}
	l := limit(s, 8, false, func(policy.Caller) int { return 2 }, slog.New(slog.DiscardHandler))
	defer l.Close()
	accepted := make(chan net.Conn, 8)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	dial()
	first := <-accepted
	<-accepted
	answer, err := io.ReadAll(dial())
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 429 ") || !strings.Contains(string(answer), `"busy"`) {
		t.Errorf("the third is answered %q, %v", answer, err)
	}
	first.Close()
	first.Close() // the second time gives nothing back
	dial()
	if c := (<-accepted).(*slotConn); c.peer == nil || int(c.peer.caller.UID) != os.Getuid() {
		t.Errorf("the peer is %v", c.peer)
	}
	if answer, err := io.ReadAll(dial()); err != nil || len(answer) == 0 {
		t.Errorf("one more is answered %q, %v", answer, err)
	}
}
