package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// The two halves of the delegated cgroup. cgroup v2 allows processes in leaves
// only, so the daemon and its roles move to one side and jails live on the
// other.
const (
	supervisorGroup = "supervisor"
	jailsGroup      = "jails"
)

// ErrNotDelegated says that this process is in no cgroup that a service
// manager made for it.
var ErrNotDelegated = errors.New("no delegated cgroup v2: not started by a unit with Delegate=yes on a host with the unified hierarchy")

// DelegatedCgroup splits the cgroup that the unit's Delegate=yes gave to this
// process: the calling process moves to its "supervisor" child, every
// controller that the kernel offers there is enabled for the children, and the
// folder of the "jails" child, empty, is returned: what it passes on is for its
// user to say. systemd 254 can do the first step itself (DelegateSubgroup=);
// older ones, Debian 12's among them, cannot.
func DelegatedCgroup() (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &fs); err != nil {
		return "", fmt.Errorf("systemd: %w", err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return "", ErrNotDelegated
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("systemd: %w", err)
	}
	group, err := unifiedPath(string(own))
	if err != nil {
		return "", err
	}
	return split(filepath.Join(cgroupRoot, group), os.Getpid())
}

// unifiedPath finds the cgroup v2 path in the text of /proc/self/cgroup and
// refuses one that cannot have been delegated: the root, or a folder that is no
// unit's own.
func unifiedPath(text string) (string, error) {
	for line := range strings.Lines(text) {
		group, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		group = strings.TrimSuffix(group, "/"+supervisorGroup)
		if group != filepath.Clean(group) || !strings.HasSuffix(group, ".service") && !strings.HasSuffix(group, ".scope") {
			return "", ErrNotDelegated
		}
		return group, nil
	}
	return "", ErrNotDelegated
}

// split is DelegatedCgroup for a given folder, so that it can be tested on a
// tree of the test's own.
func split(dir string, pid int) (string, error) {
	supervisor, jails := filepath.Join(dir, supervisorGroup), filepath.Join(dir, jailsGroup)
	for _, d := range []string{supervisor, jails} {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("systemd: delegated cgroup: %w", err)
		}
	}
	if err := writeFile(supervisor, "cgroup.procs", strconv.Itoa(pid)); err != nil {
		return "", err
	}
	return jails, enableControllers(dir)
}

// enableControllers hands every controller that dir has to its children.
func enableControllers(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("systemd: delegated cgroup: %w", err)
	}
	var enable []string
	for name := range strings.FieldsSeq(string(have)) {
		enable = append(enable, "+"+name)
	}
	if len(enable) == 0 {
		return nil
	}
	return writeFile(dir, "cgroup.subtree_control", strings.Join(enable, " "))
}

func writeFile(dir, name, text string) error {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0); err != nil {
		return fmt.Errorf("systemd: delegated cgroup: %w", err)
	}
	return nil
}
