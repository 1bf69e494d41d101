package attack

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/jail"
)

// outside makes a folder of the host with a file that no jail may reach.
func outside(t *testing.T) string {
	t.Helper()
	// Every part of its path can be passed by any user, so that nothing but the
	// jail keeps a tenant out.
	dir, err := os.MkdirTemp("", "sandboxd-attack-outside-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "canary"), []byte("host's"), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// untouched compares the folder with what outside made.
func untouched(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "canary"))
	if err != nil || string(b) != "host's" || len(entries) != 1 {
		t.Errorf("the host's folder now has %v, its file %q, %v", entries, b, err)
	}
}

// While the workspace swaps a folder for a link out of the jail, the file API
// reads, writes and removes; it must stay inside (E01).
func TestFileAPIAgainstRacer(t *testing.T) {
	host := outside(t)
	for name, target := range map[string]string{
		"absolute": host, "relative": "../../../../../../../../.." + host, "magic": "/proc/self/root" + host, "init": "/proc/1/root" + host,
	} {
		t.Run(name, func(t *testing.T) {
			j := newJail(t, "racing-"+name)
			p, err := j.Exec(t.Context(), jail.ExecSpec{Argv: []string{"/workspace/probe", "race", target}, Stdin: true, Output: 1 << 16})
			if err != nil {
				t.Fatal(err)
			}
			waitOutput(t, p)
			mine, refused := 0, 0
			// On a busy machine the racer may have to wait for its turn.
			for n, end := 0, time.Now().Add(time.Minute); n < 2000 || (mine == 0 || refused == 0) && time.Now().Before(end); n++ {
				b, err := j.ReadFile(t.Context(), "/workspace/race/canary", 1<<10)
				switch {
				case err == nil && string(b) == "mine":
					mine++
				case err != nil:
					refused++
				default:
					t.Fatalf("read %q from outside the jail", b)
				}
				// Errors are as good as success; what matters is below.
				_, _ = j.WriteFile(t.Context(), "/workspace/race/written", strings.NewReader("x"), 0o666, 10)
				_ = j.Mkdir(t.Context(), "/workspace/race/made", 0o777)
				_ = j.Remove(t.Context(), "/workspace/race/written", false)
				_, _ = j.List(t.Context(), "/workspace/race", 2)
			}
			if err := p.Stdin().(io.Closer).Close(); err != nil {
				t.Error(err)
			}
			if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
				t.Errorf("the racer ended with %+v, %v", exit, err)
			}
			if mine == 0 || refused == 0 {
				t.Errorf("the file was there %d times and was not %d times: no race took place", mine, refused)
			}
			untouched(t, host)
		})
	}
}

// waitOutput returns when the process has printed something.
func waitOutput(t *testing.T, p *jail.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for e, err := range p.Events(ctx, 0, true) {
		if err != nil || e.Kind == jail.EventExit {
			t.Fatalf("the probe ended: %+v, %v", e, err)
		}
		if e.Kind == jail.EventStdout {
			return
		}
	}
}

// Links, sockets, devices and absurd sizes: each is answered at once, with an
// error that says what it is (E02, E05).
func TestFileAPIAgainstHostileFiles(t *testing.T) {
	j := newJail(t, "hostile-files")
	output(t, j, "hostile")
	const dir = "/workspace/hostile/"
	tests := []struct {
		path string
		want error // nil: any
	}{
		// The daemon has no self in the jail's procfs.
		{dir + "to-magic-root/etc/passwd", fs.ErrNotExist},
		{dir + "to-magic-cwd/probe", fs.ErrNotExist},
		{dir + "to-magic-fd/0", fs.ErrNotExist},
		{dir + "to-init-root/etc/passwd", jail.ErrOutside},
		{dir + "to-itself", nil},
		{dir + "to-zero", nil},
		{dir + "to-mem", nil},
		{dir + "socket", jail.ErrNotRegular},
		{dir + "sparse", jail.ErrTooLarge},
		{dir + "no-such", fs.ErrNotExist},
		{"/proc/self/environ", nil},
		{"/proc/self/root/etc/passwd", fs.ErrNotExist},
		{"/proc/1/root/etc/passwd", jail.ErrOutside},
		{"/proc/1/mem", nil},
		{"/dev/zero", jail.ErrNotRegular},
		{"/workspace", jail.ErrNotRegular},
		{"/workspace/../../../etc/passwd", jail.ErrOutside},
		{"/workspace/a\x00b", nil},
		{strings.Repeat("/workspace/..", 2000) + "/etc/passwd", nil},
		{"/" + strings.Repeat("a/", 5000), nil},
	}
	for _, tt := range tests {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		b, err := j.ReadFile(ctx, tt.path, 1<<16)
		cancel()
		name := tt.path[:min(len(tt.path), 60)]
		if err == nil {
			t.Errorf("%q: read %q", name, b)
		} else if tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%q: got %v, want %v", name, err, tt.want)
		}
	}
	// A path up stays in: what is found is the jail's own.
	own, err := j.ReadFile(t.Context(), "/etc/passwd", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	up, err := j.ReadFile(t.Context(), dir+"to-up/etc/passwd", 1<<16)
	if err != nil || string(up) != string(own) || strings.Contains(string(up), "/root:/bin/") {
		t.Errorf("through a link up: %q, %v; the jail's own is %q", up, err, own)
	}
	if _, err := j.List(t.Context(), "/workspace", 32); err != nil {
		t.Errorf("list: %v", err)
	}
	// set-id bits do not come in through the API (E09).
	info, err := j.WriteFile(t.Context(), "/workspace/suid", strings.NewReader("x"), 0o6755, 10)
	if err != nil || info.Mode != 0o755 {
		t.Errorf("written with set-id bits: mode %o, %v", info.Mode, err)
	}
}
