package daemon

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
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
