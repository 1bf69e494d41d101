package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// HelperArgs are the arguments after which a program must call Main with the
// rest of them.
var HelperArgs = []string{"role", "kernel-probe"}

// Helpers by the name that follows HelperArgs.
const (
	helperConfine = "confine" // seccomp and Landlock, which cannot be taken off
	helperMounts  = "mounts"  // in a user namespace with all others
	helperNetwork = "network" // in a network namespace, as root
	helperWait    = "wait"    // lives until its standard input ends
)

// helperLimit bounds a helper that hangs.
const helperLimit = 10 * time.Second

// probeUID is what is mapped into the probe's user namespace: ids that nothing
// else uses.
const probeUID = 0x37fe0000

// trials by feature.
type trials map[string]Trial

// Main is the helper process. args are the program's arguments after
// HelperArgs. It returns the exit code.
func Main(args []string) int {
	helpers := map[string]func() trials{
		helperConfine: tryConfining, helperMounts: tryMounting, helperNetwork: tryNetwork, helperWait: wait,
	}
	if len(args) != 1 || helpers[args[0]] == nil {
		fmt.Fprintln(os.Stderr, "kernel: unknown probe")
		return 2
	}
	if err := json.NewEncoder(os.Stdout).Encode(helpers[args[0]]()); err != nil {
		return 1
	}
	return 0
}

// wait tells that it runs, and does nothing.
func wait() trials {
	fmt.Println("{}")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return trials{}
}

func helperCommand(ctx context.Context, exe, name string, attr *syscall.SysProcAttr) *exec.Cmd {
	cmd := exec.CommandContext(ctx, exe, append(append([]string(nil), HelperArgs...), name)...)
	cmd.Env = []string{}
	if attr == nil {
		attr = &syscall.SysProcAttr{}
	}
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = attr
	return cmd
}

// runHelper returns the helper's trials. If it cannot run, every feature that is
// asked of the result is a failed one: a nil map gives the zero Trial, so the
// reason is put under the names that the helpers use.
func runHelper(ctx context.Context, exe, name string, attr *syscall.SysProcAttr) trials {
	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	cmd := helperCommand(ctx, exe, name, attr)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var got trials
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err == nil {
		return got
	}
	if text := bytes.TrimSpace(stderr.Bytes()); len(text) > 0 {
		err = fmt.Errorf("%w: %s", err, text)
	}
	failed := trials{}
	for _, feature := range []string{"seccomp", "landlock", "scopes", "userns", "proc", "mountapi", "overlay", "nftables", "veth"} {
		failed[feature] = tried(fmt.Errorf("the probe could not run: %w", err))
	}
	return failed
}

// userNamespace is how a jail is born: all namespaces, root mapped, and a second
// id, which only a privileged parent may map.
func userNamespace() *syscall.SysProcAttr {
	ids := []syscall.SysProcIDMap{
		{ContainerID: 0, HostID: probeUID, Size: 1},
		{ContainerID: 1000, HostID: probeUID + 1000, Size: 1},
	}
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{NoSetGroups: true},
	}
}

func networkNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
}

// expect turns the wrong outcome of a forbidden act into an error.
func expect(what string, got, want error) error {
	if errors.Is(got, want) {
		return nil
	}
	return fmt.Errorf("%s: got %v, want %w", what, got, want)
}
