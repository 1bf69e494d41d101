package daemon

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
)

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestExecWithOwnDescriptors: what the caller passes is what the command has, and
// is closed here as soon as it runs.
func TestExecWithOwnDescriptors(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	path := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(path, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	req := &api.ExecRequest{Command: "cat; echo err >&2; exec sleep 0.2"}
	read := make(chan string, 1)
	var events []string
	for e, err := range d.api.ExecWith(ctx, "t-a", req, [3]*os.File{in, w, w}) {
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			// Its end must come with the command's, not with the answer's.
			w.Close()
			go func() { b, _ := io.ReadAll(r); read <- string(b) }()
		}
		if e.Type == api.EventResult && (e.Exec.ExitCode == nil || *e.Exec.ExitCode != 0) {
			t.Errorf("%+v", e.Exec)
		}
		events = append(events, e.Type)
	}
	select {
	case text := <-read:
		if text != "from a file\nerr\n" {
			t.Errorf("the pipe has %q", text)
		}
	case <-ctx.Done():
		t.Fatal("the pipe has no end")
	}
	if got := strings.Join(events, " "); got != "started result" {
		t.Errorf("events: %s", got)
	}
}

// TestDescriptorsAreRefused: each with the reason, and none of them stays open.
func TestDescriptorsAreRefused(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	if _, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{Argv: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	d.api.Close()
	api1, err := net.Dial("unix", d.cfg.Sockets[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer api1.Close()
	own, err := api1.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	root, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	before := openFiles(t)
	for name, tc := range map[string]struct {
		files [3]*os.File
		field string
	}{
		"a folder":               {[3]*os.File{root}, "fds.stdin"},
		"a connection to us":     {[3]*os.File{1: own}, "fds.stdout"},
		"a folder for an output": {[3]*os.File{2: root}, "fds.stderr"},
	} {
		for _, err := range d.api.ExecWith(ctx, "t-a", &api.ExecRequest{Argv: []string{"true"}}, tc.files) {
			wantError(t, err, api.CodeInvalidRequest, tc.field)
			t.Log(name, err)
		}
	}
	one := 0
	wantError(t, exec1(d, &api.ExecRequest{Argv: []string{"true"}, FDs: &api.Descriptors{Stdin: &one}}), api.CodeInvalidRequest, "fds.stdin")
	tty := &api.TTY{Cols: 1, Rows: 1}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, err := range d.api.ExecWith(ctx, "t-a", &api.ExecRequest{Argv: []string{"true"}, TTY: tty}, [3]*os.File{1: null}) {
		wantError(t, err, api.CodeInvalidRequest, "tty")
	}
	for _, err := range d.api.ExecWith(ctx, "t-a", &api.ExecRequest{Argv: []string{"true"}, Stdin: true}, [3]*os.File{null}) {
		wantError(t, err, api.CodeInvalidRequest, "fds.stdin")
	}
	d.api.Close()
	settle(t, func() bool { return openFiles(t) <= before+1 })
}

func exec1(d *testDaemon, r *api.ExecRequest) error {
	_, err := d.api.Exec(d.base, "t-a", r)
	return err
}

// settle waits for what other goroutines still have to do.
func settle(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to rest")
		}
	}
}

// TestUnclaimedDescriptorsAreClosed: a caller that sends them with anything it
// likes makes the daemon hold three at most, and only while the request runs.
func TestUnclaimedDescriptorsAreClosed(t *testing.T) {
	d := startDaemon(t)
	conn, err := net.Dial("unix", d.cfg.Sockets[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	u := conn.(*net.UnixConn)
	var fds []int
	for range 50 {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		fds = append(fds, p[0], p[1])
	}
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	before := openFiles(t)
	// One byte each, and no end of the request's head.
	for i, b := range []byte("GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 200)) {
		if _, _, err := u.WriteMsgUnix([]byte{b}, unix.UnixRights(fds[i%40:i%40+60]...), nil); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, func() bool { return openFiles(t) <= before+1+maxHanded })
	if _, err := u.Write([]byte("\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	if n, err := u.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 200") {
		t.Fatalf("%q, %v", b[:n], err)
	}
	settle(t, func() bool { return openFiles(t) <= before+1 })
	// And a request that names what was too much is refused.
	body := `{"argv":["true"],"fds":{"stdin":0}}`
	head := fmt.Sprintf("POST /v1/tenants/t-a/jail/exec HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	again, err := net.Dial("unix", d.cfg.Sockets[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, _, err := again.(*net.UnixConn).WriteMsgUnix([]byte(head), unix.UnixRights(fds[:4]...), nil); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4096)
	n, err := again.Read(answer)
	if err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 400") || !strings.Contains(string(answer[:n]), `"fds"`) {
		t.Fatalf("%q, %v", answer[:n], err)
	}
}
