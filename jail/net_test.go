package jail

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const server = `
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello from " + self.client_address[0].encode())
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), H).serve_forever()`

// waitPort fails with the server's output when it does not come up.
func waitPort(t *testing.T, j *Jail, p *Process, port uint16) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		p.Wait(ctx)
		cancel()
	}()
	if err := j.WaitPort(ctx, port); err != nil {
		p.Kill(t.Context())
		t.Fatalf("%v: %+v", err, collect(t, t.Context(), p))
	}
}

func get(t *testing.T, j *Jail, port uint16) string {
	t.Helper()
	f, err := j.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.WriteString(f, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPorts(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	before := count(t, m)
	if _, err := j.Dial(t.Context(), 3000); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("dial a closed port: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := j.WaitPort(ctx, 3000); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait for a closed port: %v", err)
	}
	for _, addr := range []string{"127.0.0.1", "0.0.0.0"} {
		p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"python3", "-c", server, addr, "3000"}})
		if err != nil {
			t.Fatal(err)
		}
		waitPort(t, j, p, 3000)
		if got := get(t, j, 3000); !strings.HasSuffix(got, "hello from 127.0.0.1") {
			t.Fatalf("%q", got)
		}
		// Thawed by a connection.
		if err := j.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := get(t, j, 3000); !strings.HasSuffix(got, "hello from 127.0.0.1") {
			t.Fatalf("%q", got)
		}
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	settled(t, m, before)
	// This process is where it was.
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if ns, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net"); err == nil && ns != here {
			t.Errorf("thread %s is in %s", task.Name(), ns)
		}
	}
}

// TestPreparedNetwork uses a namespace that the host owns: the jail's root has
// no power over it.
func TestPreparedNetwork(t *testing.T) {
	ns := hostNetNS(t)
	m := testManager(t)
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", NetNS: ns})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.Readlink("/proc/self/fd/" + itoa(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	if o := sh(t, j, "readlink /proc/self/ns/net"); strings.TrimSpace(o.stdout) != want {
		t.Fatalf("in %q, want %q", o.stdout, want)
	}
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"python3", "-c", server, "127.0.0.1", "3000"}})
	if err != nil {
		t.Fatal(err)
	}
	waitPort(t, j, p, 3000)
	if got := get(t, j, 3000); !strings.HasSuffix(got, "hello from 127.0.0.1") {
		t.Fatalf("%q", got)
	}
}

// hostNetNS makes a network namespace with lo up, owned by the host.
func hostNetNS(t *testing.T) *os.File {
	t.Helper()
	out := make(chan *os.File, 1)
	onThread(func() bool {
		defer close(out)
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return false
		}
		sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			t.Error(err)
			return false
		}
		defer unix.Close(sock)
		ifr, _ := unix.NewIfreq("lo")
		ifr.SetUint16(unix.IFF_UP)
		if err := unix.IoctlIfreq(sock, unix.SIOCSIFFLAGS, ifr); err != nil {
			t.Error(err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
			return false
		}
		out <- f
		return false
	})
	f := <-out
	if f == nil {
		t.FailNow()
	}
	runtime.Gosched()
	return f
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}
