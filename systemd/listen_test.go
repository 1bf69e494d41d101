package systemd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestMain is also the activated process of the tests below: descriptors from 3
// on and LISTEN_PID can be set up only for a process of their own.
func TestMain(m *testing.M) {
	if os.Getenv("SYSTEMD_TEST_ACTIVATED") == "" {
		os.Exit(m.Run())
	}
	if err := activated(); err != nil {
		fmt.Println("error:", err)
	}
}

func activated() error {
	if os.Getenv("LISTEN_PID") == "self" {
		if err := os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
	}
	listeners, err := Listeners()
	if err != nil {
		return err
	}
	for _, name := range []string{SocketAPI, SocketAdmin, SocketPreview} {
		for _, l := range listeners[name] {
			fmt.Println(name, l.Addr().Network(), filepath.Base(l.Addr().String()))
		}
	}
	fmt.Println("left", os.Getenv("LISTEN_FDS")+os.Getenv("LISTEN_FDNAMES")+os.Getenv("LISTEN_PID"))
	return nil
}

func activate(t *testing.T, pid string, names []string, files ...*os.File) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.ExtraFiles = files
	cmd.Env = append(os.Environ(), "SYSTEMD_TEST_ACTIVATED=1", "LISTEN_PID="+pid,
		"LISTEN_FDS="+strconv.Itoa(len(files)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func unixSocket(t *testing.T, name string) *os.File {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), name), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestListeners(t *testing.T) {
	api, admin := unixSocket(t, "api.sock"), unixSocket(t, "admin.sock")
	got := activate(t, "self", []string{SocketAPI, SocketAdmin}, api, admin)
	want := "api unix api.sock\nadmin unix admin.sock\nleft"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestListenersOfAnotherProcess(t *testing.T) {
	// What was inherited by accident from a parent that was activated.
	if got := activate(t, "1", []string{SocketAPI}, unixSocket(t, "api.sock")); got != "left" {
		t.Errorf("got %q: took another process's sockets", got)
	}
}

func TestListenersRefusesOther(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	got := activate(t, "self", []string{SocketAPI, SocketAdmin}, unixSocket(t, "api.sock"), null)
	if !strings.HasPrefix(got, `error: systemd: inherited socket "admin"`) {
		t.Errorf("got %q, want an error that names the socket", got)
	}
}
