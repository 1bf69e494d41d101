package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A unitDaemon is the installed sandboxd.service, activated by its sockets.
type unitDaemon struct {
	api *Client
}

const dropIn = "/etc/systemd/system/sandboxd.service.d/test.conf"

// useUnits gives the installed units the suite's configuration.
func (s *System) useUnits(ctx context.Context) error {
	s.ctl = "sandboxctl"
	s.State = "/var/lib/sandboxd"
	s.Preview = "127.0.0.1:8088" // sandboxd-preview.socket
	s.API = NewClient("/run/sandboxd/api.sock")
	s.Admin = NewClient("/run/sandboxd/admin.sock")
	s.policy = "/etc/sandboxd/policy.yaml"
	s.daemon = &unitDaemon{api: s.API}
	// The unit hides /tmp and /root from the daemon, so what it reads goes to
	// /etc, as an operator would have it.
	text := fmt.Sprintf("[Service]\nLoadCredential=%s:/etc/sandboxd/test/credentials/%s\nEnvironment=SSL_CERT_FILE=/etc/sandboxd/test/roots.pem\nTimeoutStartSec=900s\n", TokenName, TokenName)
	if err := errors.Join(
		os.RemoveAll("/etc/sandboxd/test"),
		os.CopyFS("/etc/sandboxd/test", os.DirFS(s.dir)),
		os.MkdirAll(filepath.Dir(dropIn), 0o755),
	); err != nil {
		return err
	}
	policy, err := os.ReadFile(filepath.Join(s.dir, "policy.yaml"))
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.WriteFile("/etc/sandboxd/policy.yaml", policy, 0o600),
		os.WriteFile(dropIn, []byte(text), 0o644),
		systemctl(ctx, "daemon-reload"),
		systemctl(ctx, "start", "sandboxd-preview.socket"),
	); err != nil {
		return err
	}
	return nil
}

// start opens the socket and lets a first request activate the daemon.
func (d *unitDaemon) start(ctx context.Context) error {
	if err := systemctl(ctx, "start", "sandboxd.socket", "sandboxd-preview.socket"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Scale(time.Minute))
	defer cancel()
	a, err := d.api.Do(ctx, "GET", "/healthz", nil)
	if err != nil {
		return fmt.Errorf("harness: the first request: %w\n%s", err, d.said())
	}
	if a.Status != 200 {
		return fmt.Errorf("harness: the first request was answered %d: %s\n%s", a.Status, a.Body, d.said())
	}
	return nil
}

func (d *unitDaemon) stop(ctx context.Context) error {
	return systemctl(context.WithoutCancel(ctx), "stop", "sandboxd.socket", "sandboxd-admin.socket", "sandboxd-preview.socket", "sandboxd.service")
}

// kill returns when the process is gone. The service manager ends what is left
// in the unit's cgroup and starts the daemon again by itself.
func (d *unitDaemon) kill(ctx context.Context) error {
	pid, err := d.pid(ctx)
	if err != nil {
		return err
	}
	if err := systemctl(ctx, "kill", "--kill-who=main", "--signal=KILL", "sandboxd.service"); err != nil {
		return err
	}
	for end := time.Now().Add(Scale(5 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("harness: process %d is still there", pid)
		}
	}
}

func (d *unitDaemon) pid(ctx context.Context) (int, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "-P", "MainPID", "sandboxd.service").Output()
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || pid == 0 {
		return 0, fmt.Errorf("harness: sandboxd.service has no main process (%q)", out)
	}
	return pid, nil
}

func (d *unitDaemon) said() string {
	out, err := exec.Command("journalctl", "-q", "-o", "cat", "-u", "sandboxd.service").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("journalctl: %v\n%s", err, out)
	}
	return string(out)
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
