package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// The jails' part: a start of the same static program outside, in a jail and in
// other sandboxes. Jails are asked for at the daemon's socket, with all that a
// tenant's has: user namespace, veth, rule of the proxy, cgroup, record.

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

// floorName is the row that the others of the jails' part are held against.
const floorName = "fork and exec of a static true"

func forkExec(bin string) step {
	return step{floorName, func(ctx context.Context) error { return exec.CommandContext(ctx, bin).Run() }}
}

// jailRows measures jails of the system; how says where they come from.
func jailRows(ctx context.Context, sys *harness.System, bin, how string, rounds int) ([]row, error) {
	const path = "/v1/tenants/" + tenant + "/jail"
	destroy := func(ctx context.Context) error {
		_, err := call(ctx, sys.API, "DELETE", path, nil)
		return err
	}
	run := func(ctx context.Context) error { return trueIn(ctx, sys.API, path, bin) }
	return measure(ctx, rounds, []step{
		forkExec(bin),
		{"true in a jail " + how + ", until its exit", run},
		{"true in the jail that is there", run},
		{"the jail's end, until nothing of it is left", destroy},
	})
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
