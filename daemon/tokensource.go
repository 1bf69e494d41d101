package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/confine"
	"sandboxd/policy"
)

// openToken starts a credential's command or connects to its socket, and
// returns what the proxy process reads from. The daemon does not read it. The
// proxy says a credential's name alone; what is run is the policy's.
func (d *Daemon) openToken(ctx context.Context, credential string) (*os.File, error) {
	c := d.policy.Credential(credential)
	switch {
	case c == nil:
	case len(c.Command) > 0:
		if !d.begin() {
			return nil, errStopping
		}
		f, err := d.tokenCommand(c)
		if err != nil {
			d.work.Done()
			return nil, fmt.Errorf("credential %s: %w", c.Name, err)
		}
		return f, nil
	case c.Socket != "":
		f, err := tokenSocket(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("credential %s: %w", c.Name, err)
		}
		return f, nil
	}
	return nil, fmt.Errorf("credential %.64q has neither command nor socket", credential)
}

// tokenCommand runs the command until it ends, or its time does: as the daemon's
// user but without capabilities, in an empty environment, with nothing open but
// the way to the proxy. What it says on standard error is not kept: it may be
// the token.
func (d *Daemon) tokenCommand(c *policy.Credential) (*os.File, error) {
	if err := trustedPath(c.Command[0], unix.S_IFREG); err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "token"), os.NewFile(uintptr(fds[1]), "token-command")
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(d.base, c.Timeout.Std())
	cmd := exec.CommandContext(ctx, c.Command[0], c.Command[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	cmd.Dir, cmd.Stdout = "/", theirs
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := confine.StartBare(cmd); err != nil {
		cancel()
		ours.Close()
		return nil, err
	}
	go func() {
		defer d.work.Done()
		defer cancel()
		err := cmd.Wait()
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // what it may have left behind
		if err != nil {
			d.log.Warn("a credential's command failed", "credential", c.Name, "state", fmt.Sprint(cmd.ProcessState), "timeout", errors.Is(ctx.Err(), context.DeadlineExceeded))
		}
	}()
	return ours, nil
}

func tokenSocket(ctx context.Context, c *policy.Credential) (*os.File, error) {
	if err := trustedPath(c.Socket, unix.S_IFSOCK); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout.Std())
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return u.File()
}

// trustedPath refuses a file, or a folder above it, that others than root and
// the daemon's own user could have put there. A socket itself may belong to the
// service behind it.
func trustedPath(path string, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != kind && kind == unix.S_IFREG:
		return fmt.Errorf("%s is not a regular file", path)
	case st.Mode&unix.S_IFMT != kind:
		return fmt.Errorf("%s is not a socket", path)
	case kind == unix.S_IFREG && (!ours(st.Uid) || st.Mode&0o022 != 0):
		return fmt.Errorf("%s can be changed by others: it must belong to root and be writable by its owner alone", path)
	case kind == unix.S_IFREG && st.Mode&0o111 == 0:
		return fmt.Errorf("%s is not executable", path)
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if err := unix.Lstat(dir, &st); err != nil {
			return err
		}
		sticky := st.Mode&unix.S_ISVTX != 0 && ours(st.Uid)
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return fmt.Errorf("%s is not a folder itself; write the path without links", dir)
		case kind == unix.S_IFREG && !ours(st.Uid), st.Mode&0o022 != 0 && !sticky:
			return fmt.Errorf("the folder %s can be changed by others than root", dir)
		}
		if dir == "/" {
			return nil
		}
	}
}

func ours(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }
