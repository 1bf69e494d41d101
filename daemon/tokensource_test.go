package daemon

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/policy"
)

// tokenDaemon is as much of a daemon as a token's source needs.
func tokenDaemon(t *testing.T) *Daemon {
	t.Helper()
	return &Daemon{base: t.Context(), log: slog.New(slog.DiscardHandler)}
}

// rootFolder is one that only root can change, all the way up.
func rootFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "sandboxd-token-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func program(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(rootFolder(t), "token")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokenCommand(t *testing.T) {
	d := tokenDaemon(t)
	run := func(text string, timeout time.Duration, args ...string) (string, error) {
		d.work.Add(1)
		f, err := d.tokenCommand(&policy.Credential{Name: "c", Command: append([]string{program(t, text)}, args...), Timeout: policy.Duration(timeout)})
		if err != nil {
			d.work.Done()
			return "", err
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		return string(b), err
	}
	out, err := run(`echo "$1 $HOME $SECRET"; echo hidden >&2`, 10*time.Second, "one")
	if err != nil || out != "one  \n" {
		t.Errorf("said %q, %v", out, err)
	}
	began := time.Now()
	out, err = run(`echo early; sleep 60 & sleep 60`, 200*time.Millisecond)
	if err != nil || out != "early\n" || time.Since(began) > 30*time.Second {
		t.Errorf("a command that does not end: %q, %v, after %v", out, err, time.Since(began))
	}
	d.work.Wait() // every command is reaped
}

func TestTokenSocket(t *testing.T) {
	path := filepath.Join(rootFolder(t), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "token")
			c.Close()
		}
	}()
	f, err := tokenSocket(t.Context(), &policy.Credential{Socket: path, Timeout: policy.Duration(10 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "token" {
		t.Errorf("said %q, %v", b, err)
	}
	if _, err := tokenSocket(t.Context(), &policy.Credential{Socket: program(t, ""), Timeout: policy.Duration(time.Second)}); err == nil {
		t.Error("a file was taken for a socket")
	}
}

// TestTrustedPath: what others could have put there is not run.
func TestTrustedPath(t *testing.T) {
	good := program(t, "")
	if err := trustedPath(good, unix.S_IFREG); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for name, spoil := range map[string]func(path string) error{
		"writable by the group": func(p string) error { return os.Chmod(p, 0o770) },
		"another's":             func(p string) error { return os.Chown(p, 12345, 0) },
		"not executable":        func(p string) error { return os.Chmod(p, 0o600) },
		"a folder for all":      func(p string) error { return os.Chmod(filepath.Dir(p), 0o777) },
		"another's folder":      func(p string) error { return os.Chown(filepath.Dir(p), 12345, 0) },
		"a link": func(p string) error {
			return errors.Join(os.Rename(p, p+"2"), os.Symlink(p+"2", p))
		},
		"a folder itself": func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"gone":            os.Remove,
	} {
		path := program(t, "")
		if err := spoil(path); err != nil {
			t.Fatal(err)
		}
		if err := trustedPath(path, unix.S_IFREG); err == nil {
			t.Errorf("%s was trusted", name)
		}
	}
}
