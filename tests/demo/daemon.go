package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandboxd/tests/internal/harness"
	"sandboxd/tests/internal/npmregistry"
)

// A daemon is a running `sandboxd dev` and the way to call it.
type daemon struct {
	cmd     *exec.Cmd
	ctl     string // sandboxctl
	socket  string
	skills  string // folder with the skills' files
	preview string
	secrets []string // must appear nowhere in what a sandbox or the CLI shows

	mu     sync.Mutex
	output bytes.Buffer
}

func startDaemon(ctx context.Context, bin, dir string, w *world) (*daemon, error) {
	state := filepath.Join(dir, "state")
	credentials := filepath.Join(dir, "credentials")
	skillDir := filepath.Join(dir, "skills")
	for _, d := range []string{state, credentials} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := os.CopyFS(dir, skills); err != nil {
		return nil, err
	}
	policy, err := writePolicy(ctx, dir)
	if err != nil {
		return nil, err
	}
	bundle, err := trustBundle(dir, w.CA)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"rates-token": w.apiToken, "git-password": w.gitToken} {
		if err := os.WriteFile(filepath.Join(credentials, name), []byte(value), 0o600); err != nil {
			return nil, err
		}
	}
	preview, err := harness.FreeAddress()
	if err != nil {
		return nil, err
	}
	d := &daemon{
		ctl: filepath.Join(bin, "sandboxctl"), socket: filepath.Join(state, "api.sock"),
		skills: skillDir, preview: preview, secrets: []string{w.apiToken, w.gitToken},
	}
	d.cmd = exec.Command(filepath.Join(bin, "sandboxd"), "dev", "--state", state,
		"--policy", policy, "--credentials", credentials, "--preview", preview)
	// The interpreters that it compiles are kept where make clean finds them.
	cache, err := filepath.Abs(filepath.Join(bin, "cache"))
	if err != nil {
		return nil, err
	}
	d.cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+bundle, "XDG_CACHE_HOME="+cache)
	// A demo that is killed takes its daemon with it.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := d.start(ctx); err != nil {
		return nil, fmt.Errorf("start sandboxd dev: %w", err)
	}
	return d, nil
}

// start runs the daemon and waits for its line "ready".
func (d *daemon) start(ctx context.Context) error {
	say("$ sandboxd dev --policy policy.yaml --credentials credentials/ --preview %s", d.preview)
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	d.cmd.Stdout, d.cmd.Stderr = w, w
	if err := d.cmd.Start(); err != nil {
		r.Close()
		return err
	}
	ready := make(chan bool, 1)
	go func() {
		defer r.Close()
		told := false
		for lines := bufio.NewScanner(r); lines.Scan(); {
			d.mu.Lock()
			fmt.Fprintln(&d.output, lines.Text())
			d.mu.Unlock()
			if !told {
				fmt.Printf("  │ %s\n", lines.Text())
			}
			if !told && strings.TrimSpace(lines.Text()) == "ready" {
				told = true
				ready <- true
			}
		}
		if !told {
			ready <- false
		}
	}()
	select {
	case ok := <-ready:
		if !ok {
			return errors.Join(errors.New("it ended before it was ready"), d.cmd.Wait())
		}
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), d.stop())
	case <-time.After(2 * time.Minute):
		return errors.Join(errors.New("it was not ready within two minutes"), d.stop())
	}
}

func (d *daemon) stop() error {
	if d.cmd.Process == nil || d.cmd.ProcessState != nil {
		return nil
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop sandboxd: %w", err)
	}
	late := time.AfterFunc(20*time.Second, func() { d.cmd.Process.Kill() })
	err := d.cmd.Wait()
	if !late.Stop() {
		return fmt.Errorf("sandboxd did not stop within 20 s and was killed: %w\n%s", err, d.said())
	}
	if err != nil {
		return fmt.Errorf("sandboxd stopped with %w\n%s", err, d.said())
	}
	return nil
}

func (d *daemon) said() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.output.String()
}

// outcome is what one sandboxctl call came to.
type outcome struct {
	stdout, stderr string
	code           int
}

func (o outcome) all() string { return o.stdout + o.stderr }

// call runs sandboxctl, shows the command and what it printed, and holds what
// it printed against the secrets.
func (d *daemon) call(ctx context.Context, args ...string) (outcome, error) {
	shown := make([]string, len(args))
	for i, a := range args {
		shown[i] = strings.TrimPrefix(a, d.skills+"/")
		if strings.ContainsAny(shown[i], " {\"';") {
			shown[i] = "'" + strings.ReplaceAll(shown[i], "'", `'\''`) + "'"
		}
	}
	say("$ sandboxctl %s", strings.Join(shown, " "))
	o, err := d.quiet(ctx, args...)
	for line := range strings.Lines(strings.TrimRight(o.all(), "\n")) {
		fmt.Printf("  │ %s\n", strings.TrimRight(line, "\r\n"))
	}
	return o, err
}

// quiet is call without showing anything.
func (d *daemon) quiet(ctx context.Context, args ...string) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.ctl, args...)
	cmd.Env = append(os.Environ(), "SANDBOXD_SOCKET="+d.socket)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	o := outcome{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return o, fmt.Errorf("sandboxctl %s: %w", args[0], err)
	}
	for _, s := range d.secrets {
		if strings.Contains(o.all(), s) {
			return o, fmt.Errorf("a secret came out of sandboxctl %s", strings.Join(args, " "))
		}
	}
	return o, nil
}

// want calls sandboxctl and fails unless it ends with code and its output holds
// all of texts.
func (d *daemon) want(ctx context.Context, code int, texts []string, args ...string) (outcome, error) {
	o, err := d.call(ctx, args...)
	if err != nil {
		return o, err
	}
	if o.code != code {
		return o, fmt.Errorf("sandboxctl %s ended with %d, not %d", args[0], o.code, code)
	}
	for _, t := range texts {
		if !strings.Contains(o.all(), t) {
			return o, fmt.Errorf("sandboxctl %s did not say %q", args[0], t)
		}
	}
	return o, nil
}

// writePolicy writes what alice and bob may do.
func writePolicy(ctx context.Context, dir string) (string, error) {
	registry, err := npmregistry.Find(ctx)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf(policyText, place.Prefix(), place.Addr, registry.URL, registry.Rule(), place.Prefix(), place.Addr)
	path := filepath.Join(dir, "policy.yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

const policyText = `version: 1
callers:
  - user: root
    tenants: ["*"]
    admin: true
profiles:
  skill:
    isolate:
      languages: [js, ts]
      bindings: {DB: {type: db}, LOG: {type: log}}
      fetch: true
      limits: {wall: 5s, cpu: 500ms, memory: 32MiB, requests: 5}
    jail:
      template: host
    egress:
      - host: api.demo.test
        methods: [GET]
        paths: ["/v1/*"]
        addresses: [%s]
        resolve: [%s]
        credential: {name: rates-token, as: bearer}
  project:
    jail:
      template: host
      preview: true
      env: {npm_config_registry: "%s"}
    egress:
      - %s
      - host: git.demo.test
        addresses: [%s]
        resolve: [%s]
        credential: {name: git-password, as: basic, username: demo}
tenants:
  alice: {profile: skill}
  bob: {profile: project}
`

// trustBundle adds the world's authority to what this machine trusts, for the
// daemon alone.
func trustBundle(dir string, ca []byte) (string, error) {
	host := os.Getenv("SSL_CERT_FILE")
	if host == "" {
		host = "/etc/ssl/certs/ca-certificates.crt"
	}
	roots, err := os.ReadFile(host)
	if err != nil {
		return "", fmt.Errorf("the machine's own roots: %w", err)
	}
	path := filepath.Join(dir, "roots.pem")
	return path, os.WriteFile(path, append(append(roots, '\n'), ca...), 0o600)
}
