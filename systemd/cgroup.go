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

// supervisorGroup is the leaf that the daemon and its roles live in. cgroup v2
// allows processes in leaves only, so the unit's own group must be empty before
// it can pass controllers on to jails.
const supervisorGroup = "supervisor"

// ErrNotDelegated says that this process is in no cgroup that a service
// manager made for it.
var ErrNotDelegated = errors.New("no delegated cgroup v2: not started by a unit with Delegate=yes on a host with the unified hierarchy")

// DelegatedCgroup empties the cgroup that the unit's Delegate=yes gave to this
// process: the calling process moves to its "supervisor" child. The folder of
// the unit's group is returned; what it passes on to which other children is for
// its user to say. systemd 254 can do this (DelegateSubgroup=); older ones,
// Debian 12's among them, cannot.
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
	dir := filepath.Join(cgroupRoot, group)
	return dir, vacate(dir, os.Getpid())
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

// vacate moves a process to the supervisor's leaf below dir.
func vacate(dir string, pid int) error {
	leaf := filepath.Join(dir, supervisorGroup)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("systemd: delegated cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("systemd: delegated cgroup: %w", err)
	}
	return nil
}
