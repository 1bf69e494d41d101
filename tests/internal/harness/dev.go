package harness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A devDaemon is `sandboxd dev` as a child process.
type devDaemon struct {
	argv []string
	env  []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	output bytes.Buffer
}

func (s *System) useDev() error {
	bin, err := Bin()
	if err != nil {
		return err
	}
	if s.Preview, err = FreeAddress(); err != nil {
		return err
	}
	s.ctl = filepath.Join(bin, "sandboxctl")
	s.State = filepath.Join(s.dir, "state")
	// Others may come as far as the sockets, which then decide.
	if err := errors.Join(os.Mkdir(s.State, 0o711), os.Chmod(s.State, 0o711), os.Chmod(s.dir, 0o711)); err != nil {
		return err
	}
	s.API = NewClient(filepath.Join(s.State, "api.sock"))
	s.Admin = NewClient(filepath.Join(s.State, "admin.sock"))
	s.policy = filepath.Join(s.dir, "policy.yaml")
	s.daemon = &devDaemon{
		argv: append([]string{filepath.Join(bin, "sandboxd"), "dev", "--state", s.State, "--preview", s.Preview,
			"--policy", filepath.Join(s.dir, "policy.yaml"), "--credentials", filepath.Join(s.dir, "credentials")}, s.args...),
		env: append(os.Environ(), "SSL_CERT_FILE="+filepath.Join(s.dir, "roots.pem")),
	}
	return nil
}

func (d *devDaemon) start(ctx context.Context) error {
	cmd := exec.Command(d.argv[0], d.argv[1:]...)
	cmd.Env = d.env
	// A suite that is killed takes its daemon along; an interrupt at the
	// terminal is the suite's to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	pipe, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	err = cmd.Start()
	writer.Close()
	if err != nil {
		pipe.Close()
		return fmt.Errorf("harness: start sandboxd: %w", err)
	}
	d.mu.Lock()
	d.cmd = cmd
	d.mu.Unlock()
	ready := make(chan struct{})
	ended := make(chan struct{})
	go d.listen(pipe, ready, ended)
	select {
	case <-ready:
		return nil
	case <-ended:
		return errors.Join(fmt.Errorf("harness: sandboxd ended before it was ready:\n%s", d.said()), d.end())
	case <-time.After(Scale(time.Minute)):
		return errors.Join(fmt.Errorf("harness: sandboxd was not ready in time:\n%s", d.said()), d.kill(ctx))
	case <-ctx.Done():
		return errors.Join(ctx.Err(), d.kill(context.WithoutCancel(ctx)))
	}
}

// listen keeps what the daemon says until its end.
func (d *devDaemon) listen(r io.ReadCloser, ready, ended chan struct{}) {
	defer close(ended)
	defer r.Close()
	told := false
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		d.mu.Lock()
		d.output.WriteString(line)
		d.mu.Unlock()
		if !told && strings.TrimSpace(line) == "ready" {
			told = true
			close(ready)
		}
		if err != nil {
			return
		}
	}
}

// end takes the status of the process, once.
func (d *devDaemon) end() error {
	d.mu.Lock()
	cmd := d.cmd
	d.cmd = nil
	d.mu.Unlock()
	if cmd == nil {
		return nil
	}
	return cmd.Wait()
}

func (d *devDaemon) signal(sig syscall.Signal) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return nil
	}
	return d.cmd.Process.Signal(sig)
}

func (d *devDaemon) stop(context.Context) error {
	if err := d.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("harness: stop sandboxd: %w", err)
	}
	late := time.AfterFunc(Scale(30*time.Second), func() { _ = d.signal(syscall.SIGKILL) })
	defer late.Stop()
	if err := d.end(); err != nil {
		return fmt.Errorf("harness: sandboxd did not stop well: %w\n%s", err, d.said())
	}
	return nil
}

func (d *devDaemon) kill(context.Context) error {
	if err := d.signal(syscall.SIGKILL); err != nil {
		return err
	}
	var exit *exec.ExitError
	if err := d.end(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

func (d *devDaemon) pid(context.Context) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return 0, errors.New("harness: sandboxd does not run")
	}
	return d.cmd.Process.Pid, nil
}

func (d *devDaemon) said() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.output.String()
}

// FreeAddress is an address of the loopback that nobody listens at, below the
// ports that the kernel gives to connections: while a daemon that had it is down,
// none takes it.
func FreeAddress() (string, error) {
	const first, ports = 20000, 10000
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(ports))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}
