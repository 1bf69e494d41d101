package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// A System is the world, a configuration and a daemon that uses both.
type System struct {
	World *World
	// API and Admin call the daemon's two sockets.
	API, Admin *Client
	// Preview is the address of the preview listener.
	Preview string
	// State is the daemon's state folder.
	State string

	dir    string
	args   []string
	ctl    string
	policy string // the daemon's policy file
	daemon daemon
}

// A daemon is one way to run sandboxd.
type daemon interface {
	// start returns when requests are served.
	start(ctx context.Context) error
	// stop asks it to end and waits until it has; kill does so with SIGKILL.
	stop(ctx context.Context) error
	kill(ctx context.Context) error
	pid(ctx context.Context) (int, error)
	// said is its log so far.
	said() string
}

// UnderSystemd reports whether the daemon is run by the installed units: in
// the virtual machine, which says so.
func UnderSystemd() bool { return os.Getenv("SANDBOXD_TEST_SYSTEMD") == "1" }

// Start makes a whole system, with more profiles in its policy if a suite needs
// them, and waits until it serves.
func Start(ctx context.Context, more ...Profile) (*System, error) {
	return StartWith(ctx, nil, more...)
}

// StartWith is Start with further arguments of `sandboxd dev`.
func StartWith(ctx context.Context, args []string, more ...Profile) (_ *System, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("harness: needs root, for namespaces")
	}
	if UnderSystemd() && len(args) > 0 {
		return nil, errors.New("harness: the units' arguments are what they are")
	}
	s := &System{args: args}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(ctx))
		}
	}()
	if s.dir, err = os.MkdirTemp("", "sandboxd-test-"); err != nil {
		return nil, err
	}
	if s.World, err = NewWorld(); err != nil {
		return nil, err
	}
	if err := configure(s.dir, s.World, more); err != nil {
		return nil, fmt.Errorf("harness: configure: %w", err)
	}
	if UnderSystemd() {
		err = s.useUnits(ctx)
	} else {
		err = s.useDev()
	}
	if err != nil {
		return nil, err
	}
	return s, s.daemon.start(ctx)
}

// Close stops everything and removes what Start made.
func (s *System) Close(ctx context.Context) error {
	var errs []error
	if s.daemon != nil {
		s.dropConnections()
		errs = append(errs, s.daemon.stop(ctx))
	}
	if s.World != nil {
		errs = append(errs, s.World.Close())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// Stop, Kill and Restart are the life of the daemon alone.
func (s *System) Stop(ctx context.Context) error {
	s.dropConnections()
	return s.daemon.stop(ctx)
}

// Kill ends the daemon with SIGKILL: what a crash leaves is left.
func (s *System) Kill(ctx context.Context) error {
	s.dropConnections()
	return s.daemon.kill(ctx)
}

// Restart starts a stopped or killed daemon on the same state.
func (s *System) Restart(ctx context.Context) error { return s.daemon.start(ctx) }

// Pid is the daemon's process.
func (s *System) Pid(ctx context.Context) (int, error) { return s.daemon.pid(ctx) }

// Log is what the daemon has said so far.
func (s *System) Log() string { return s.daemon.said() }

func (s *System) dropConnections() {
	s.API.Close()
	s.Admin.Close()
}

// An Outcome is what one call of sandboxctl came to.
type Outcome struct {
	Stdout, Stderr string
	Code           int
}

// Ctl runs sandboxctl against the API socket.
func (s *System) Ctl(ctx context.Context, stdin string, args ...string) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, Scale(time.Minute))
	defer cancel()
	cmd := s.CtlCommand(ctx, args...)
	cmd.Stdin = bytes.NewBufferString(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Outcome{}, fmt.Errorf("sandboxctl: %w", err)
	}
	return Outcome{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}, nil
}

// WritePolicy replaces the policy file's text and returns what it was. The
// daemon is not told.
func (s *System) WritePolicy(edit func(text string) string) (was string, err error) {
	b, err := os.ReadFile(s.policy)
	if err != nil {
		return "", err
	}
	return string(b), os.WriteFile(s.policy, []byte(edit(string(b))), 0o600)
}

// CtlCommand is sandboxctl with these arguments, to be started by the caller.
func (s *System) CtlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.ctl, args...)
	cmd.Env = append(os.Environ(), "SANDBOXD_SOCKET="+s.API.Socket)
	return cmd
}

// Bin is the folder with the programs that `make build` made.
func Bin() (string, error) {
	if dir := os.Getenv("SANDBOXD_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "build"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("harness: not inside the module; set SANDBOXD_BIN")
		}
		dir = parent
	}
}
