package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// What else makes sandboxes here, on the same work: the static true in fresh user,
// pid, mount, network, IPC and UTS namespaces, from the start of the tool to its
// end. None of them has what a jail has besides: a veth with a neighbour, a cgroup
// of its own with limits, Landlock, a record.

// A peer is a program of a Debian package.
type peer struct {
	name, has string
	do        func(ctx context.Context, bin, bundle string) error
	private   bool // it needs a cgroup v2 hierarchy without version 1 beside it
}

var peers = []peer{
	{name: "bwrap", has: "all namespaces, / read-only; no seccomp", do: func(ctx context.Context, bin, _ string) error {
		return command(ctx, "bwrap", "--unshare-all", "--ro-bind", "/", "/", bin)
	}},
	{name: "crun", has: "all namespaces, root folder, /proc, no capabilities; no cgroup limits, no seccomp", do: runBundle("crun"), private: true},
	{name: "runc", has: "all namespaces, root folder, /proc, no capabilities, a cgroup; no seccomp", do: runBundle("runc")},
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", name, err, out)
	}
	return nil
}

var containers atomic.Int64

func runBundle(tool string) func(context.Context, string, string) error {
	return func(ctx context.Context, _, bundle string) error {
		id := fmt.Sprintf("sandboxd-bench-%d-%d", os.Getpid(), containers.Add(1))
		return command(ctx, tool, "--root", filepath.Join(bundle, tool), "run", "--bundle", bundle, id)
	}
}

// makeBundle writes what crun and runc run: a root folder with the program alone.
func makeBundle(dir, bin string) (string, error) {
	bundle := filepath.Join(dir, "bundle")
	for _, d := range []string{"rootfs/proc", "rootfs/dev"} {
		if err := os.MkdirAll(filepath.Join(bundle, d), 0o755); err != nil {
			return "", err
		}
	}
	program, err := os.ReadFile(bin)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "rootfs/true"), program, 0o755)
	}
	if err != nil {
		return "", err
	}
	type m = map[string]any
	var namespaces []m
	for _, kind := range []string{"user", "pid", "mount", "network", "ipc", "uts"} {
		namespaces = append(namespaces, m{"type": kind})
	}
	ids := []m{{"containerID": 0, "hostID": 3_000_000_000, "size": 65536}}
	text, err := json.Marshal(m{
		"ociVersion": "1.0.2", "root": m{"path": "rootfs"}, "hostname": "bench",
		"process": m{"cwd": "/", "args": []string{"/true"}, "user": m{"uid": 0, "gid": 0}, "noNewPrivileges": true, "capabilities": m{}},
		"mounts": []m{{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=64k"}}},
		"linux": m{"namespaces": namespaces, "uidMappings": ids, "gidMappings": ids},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755) // the container's root is somebody else
	}
	return bundle, err
}

// peers measures them.
func (r *report) peers(ctx context.Context, dir string, rounds int) (err error) {
	bin, remove, err := staticTrue(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	rows, err := peerRows(ctx, dir, bin, max(rounds/6, 10))
	r.Rows = append(r.Rows, rows...)
	return err
}

// peerRows measures each peer beside a floor of its own. One that is not there, or
// does not run here, has a row that says so.
func peerRows(ctx context.Context, dir, bin string, rounds int) ([]row, error) {
	bundle, err := makeBundle(dir, bin)
	if err != nil {
		return nil, err
	}
	var out []row
	for _, p := range peers {
		rows, err := p.measure(ctx, bin, bundle, rounds)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out = append(out, row{Name: p.name + ": true", Note: "not measured: " + strings.TrimSpace(err.Error())})
			continue
		}
		out = append(out, rows...)
	}
	return out, nil
}

func (p *peer) measure(ctx context.Context, bin, bundle string, rounds int) ([]row, error) {
	if _, err := exec.LookPath(p.name); err != nil {
		return nil, fmt.Errorf("%s is not installed (Debian: %s)", p.name, map[string]string{"bwrap": "bubblewrap"}[p.name]+p.name)
	}
	if p.private && os.Getenv(privateEnv) == "" {
		return p.measurePrivate(ctx, bin, bundle, rounds)
	}
	rows, err := measure(ctx, rounds, []step{forkExec(bin), {p.name + ": true", func(ctx context.Context) error { return p.do(ctx, bin, bundle) }}})
	if err != nil {
		return nil, err
	}
	rows[1].Note = p.has
	return rows[1:], nil
}

// peerFlag and privateEnv make this program measure one peer in a mount namespace
// of its own, where cgroup v2 is all there is.
const (
	peerFlag   = "peer"
	privateEnv = "SANDBOXD_BENCH_PRIVATE"
)

func (p *peer) measurePrivate(ctx context.Context, bin, bundle string, rounds int) ([]row, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-n", fmt.Sprint(rounds), peerFlag, p.name, bin, bundle)
	cmd.Env = append(os.Environ(), privateEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	var problem strings.Builder
	cmd.Stderr = &problem
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, problem.String())
	}
	var rows []row
	return rows, json.Unmarshal(text, &rows)
}

// servePeer is the child's part.
func servePeer(ctx context.Context, name, bin, bundle string, rounds int) error {
	err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("none", "/sys/fs/cgroup", "cgroup2", 0, "")
	}
	if err != nil {
		return fmt.Errorf("cgroup v2 alone: %w", err)
	}
	for _, p := range peers {
		if p.name == name {
			rows, err := p.measure(ctx, bin, bundle, rounds)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(rows)
		}
	}
	return errors.New("no such peer")
}
