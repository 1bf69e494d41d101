package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// The jails' part: a start of the same static program outside, in a jail and in
// other sandboxes. Jails are asked for at the daemon's socket, with all that a
// tenant's has: user namespace, veth, rule of the proxy, cgroup, record.

// jails measures them.
func (r *report) jails(ctx context.Context, _ string, rounds int) (err error) {
	bin, remove, err := staticTrue(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	// A jail costs some hundred times as much as an isolate's call, and its end
	// goes on in the kernel for a while.
	rounds = max(rounds/2, 10)
	for _, from := range []struct {
		what string
		args []string
	}{{"made from nothing", []string{"--jail-spares", "0"}}, {"that was kept ready", nil}} {
		if err := r.jailsOf(ctx, bin, from.what, rounds, from.args...); err != nil {
			return fmt.Errorf("jails %s: %w", from.what, err)
		}
	}
	return nil
}

// jailsOf measures a system of its own.
func (r *report) jailsOf(ctx context.Context, bin, what string, rounds int, args ...string) error {
	sys, err := harness.StartWith(ctx, args)
	if err != nil {
		return err
	}
	rows, err := jailRows(ctx, sys, bin, what, rounds)
	r.Rows = append(r.Rows, rows...)
	if err == nil && args == nil {
		var figures []figure
		figures, err = jailFigures(ctx, sys, bin, rounds)
		r.Figures = append(r.Figures, figures...)
	}
	return errors.Join(err, sys.Close(context.WithoutCancel(ctx)))
}

// staticTrue builds the program that all rows run, where also a jail sees it: in
// a folder of /usr that remove removes.
func staticTrue(ctx context.Context) (bin string, remove func() error, err error) {
	dir, err := os.MkdirTemp("/usr/local/lib", "sandboxd-bench-")
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	src, bin := filepath.Join(dir, "true.c"), filepath.Join(dir, "true")
	if err = os.WriteFile(src, []byte("int main(void) { return 0; }\n"), 0o600); err == nil {
		var out []byte
		if out, err = exec.CommandContext(ctx, "gcc", "-O2", "-static", "-o", bin, src).CombinedOutput(); err != nil {
			err = fmt.Errorf("gcc: %w: %s", err, out)
		}
	}
	if err == nil {
		err = errors.Join(os.Chmod(bin, 0o755), os.Chmod(dir, 0o755))
	}
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return bin, remove, nil
}

func forkExec(bin string) step {
	return step{"fork and exec of a static true", func(ctx context.Context) error { return exec.CommandContext(ctx, bin).Run() }}
}

func jailPath(tenant string) string { return "/v1/tenants/" + tenant + "/jail" }

// jailRows measures jails of the system; how says where they come from.
func jailRows(ctx context.Context, sys *harness.System, bin, how string, rounds int) ([]row, error) {
	path := jailPath(tenant)
	run := func(ctx context.Context) error { return trueIn(ctx, sys.API, path, bin) }
	return measure(ctx, rounds, []step{
		forkExec(bin),
		{"", func(ctx context.Context) error { return sparesReady(ctx, sys) }},
		{"true in a jail " + how + ", until its exit", run},
		{"true in the jail that is there", run},
		{"the jail's end, until nothing of it is left", func(ctx context.Context) error { return destroy(ctx, sys.API, path) }},
	})
}

func destroy(ctx context.Context, c *harness.Client, path string) error {
	_, err := call(ctx, c, "DELETE", path, nil)
	return err
}

// sparesReady waits until all jails that are to be kept ready are.
func sparesReady(ctx context.Context, sys *harness.System) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		text, err := call(ctx, sys.Admin, "GET", "/v1/status", nil)
		if err != nil {
			return err
		}
		var s api.Status
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		if s.Spares != nil && s.Spares.Ready >= s.Spares.Size {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the spare jails do not come: %+v", s.Spares)
		}
	}
}

// trueIn runs the program in the tenant's jail, which is made if there is none.
func trueIn(ctx context.Context, c *harness.Client, path, bin string) error {
	text, err := call(ctx, c, "POST", path+"/exec", []byte(`{"argv":["`+bin+`"]}`))
	if err != nil {
		return err
	}
	var p api.Process
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	if p.ExitCode == nil || *p.ExitCode != 0 {
		return errors.New("true ended with " + string(text))
	}
	return nil
}

// pss is a process's proportional set size, in bytes.
func pss(pid string) (float64, error) {
	b, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		var kib float64
		if n, _ := fmt.Sscanf(string(line), "Pss: %f kB", &kib); n == 1 {
			return kib * 1024, nil
		}
	}
	return 0, errors.New("no Pss in smaps_rollup")
}
