package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupRoots are where cgroup v2 may be mounted: alone, or beside version 1.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// jailControllers are what jails are limited with.
var jailControllers = []string{"cpu", "memory", "pids", "io"}

// ownCgroup makes a fresh cgroup for jails below the v2 root, for a daemon that
// no service manager gave one. cleanup removes it.
func ownCgroup() (dir string, cleanup func() error, err error) {
	root, err := cgroupRoot()
	if err != nil {
		return "", nil, err
	}
	if err := sweepCgroups(root); err != nil {
		return "", nil, err
	}
	dir = filepath.Join(root, fmt.Sprintf("sandboxd-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil, fmt.Errorf("cgroup: %w", err)
	}
	cleanup = func() error { return removeCgroup(dir) }
	for _, d := range []string{root, dir} {
		if err := enableControllers(d); err != nil {
			return "", nil, errors.Join(err, cleanup())
		}
	}
	return dir, cleanup, nil
}

// sweepCgroups ends and removes what crashed daemons left: the groups that are
// named after a process that is no more.
func sweepCgroups(root string) error {
	left, err := filepath.Glob(filepath.Join(root, "sandboxd-*"))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, dir := range left {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "sandboxd-"))
		if err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue // another program's, or a daemon that lives
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cgroup: end what a crashed daemon left: %w", err)
		}
		if err := removeCgroup(dir); err != nil {
			return err
		}
	}
	return nil
}

func cgroupRoot() (string, error) {
	for _, dir := range cgroupRoots {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, nil
		}
	}
	return "", errors.New("cgroup: version 2 is mounted at none of " + strings.Join(cgroupRoots, ", "))
}

// missingControllers are those that the v2 hierarchy at dir does not offer.
func missingControllers(dir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	have := map[string]bool{}
	for name := range strings.FieldsSeq(string(text)) {
		have[name] = true
	}
	var missing []string
	for _, name := range jailControllers {
		if !have[name] {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// enableControllers hands to dir's children what there is of jailControllers.
// What the parent already hands down stays as it is.
func enableControllers(dir string) error {
	missing, err := missingControllers(dir)
	if err != nil {
		return err
	}
	var enable []string
	for _, name := range jailControllers {
		if !contains(missing, name) {
			enable = append(enable, "+"+name)
		}
	}
	if len(enable) == 0 {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(enable, " ")), 0); err != nil {
		return fmt.Errorf("cgroup: hand controllers down: %w", err)
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// removeCgroup removes dir and what is below it. A cgroup that has just lost
// its last process can stay busy for a moment.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for range 100 {
		if err = unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cgroup: remove %s: %w", dir, err)
	}
	return nil
}
