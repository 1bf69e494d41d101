package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/cgroup"
)

// cgroupRoots are where cgroup v2 may be mounted: alone, or beside version 1.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// jailControllers are what jails are limited with.
var jailControllers = []string{"cpu", "memory", "pids"}

// devCgroups is how the groups are named that daemons make for themselves.
const devCgroups = "sandboxd-dev-"

// ownCgroup makes a fresh cgroup for jails below the v2 root, for a daemon that
// no service manager gave one. It is this daemon's as long as it lives: a lock
// tells others so, not a process id, which means nothing in a container that
// shares the hierarchy. cleanup removes it.
func ownCgroup() (dir string, cleanup func() error, err error) {
	root, err := cgroupRoot()
	if err != nil {
		return "", nil, err
	}
	if err := sweepCgroups(root); err != nil {
		return "", nil, err
	}
	dir, held, err := makeCgroup(root)
	if err != nil {
		return "", nil, err
	}
	cleanup = sync.OnceValue(func() error { return errors.Join(removeCgroup(dir), held.Close()) })
	for _, d := range []string{root, dir} {
		if err := enableControllers(d); err != nil {
			return "", nil, errors.Join(err, cleanup())
		}
	}
	return dir, cleanup, nil
}

// makeCgroup makes a group and locks it. One that another daemon sweeps before
// it is locked is given up for the next.
func makeCgroup(root string) (dir string, held *os.File, err error) {
	for range 100 {
		if dir, err = os.MkdirTemp(root, devCgroups); err != nil {
			return "", nil, fmt.Errorf("cgroup: %w", err)
		}
		if held, err = lockCgroup(dir); err == nil {
			return dir, held, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !gone(err) {
			return "", nil, errors.Join(err, removeCgroup(dir))
		}
	}
	return "", nil, err
}

// lockCgroup fails with EWOULDBLOCK if a living daemon holds dir. The lock is
// on a file in it: the folder itself is for whoever runs jails there.
func lockCgroup(dir string) (*os.File, error) {
	f, err := os.Open(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("cgroup: lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// sweepCgroups ends and removes what crashed daemons left: the groups that
// nobody holds.
func sweepCgroups(root string) error {
	left, err := filepath.Glob(filepath.Join(root, devCgroups+"*"))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, dir := range left {
		held, err := lockCgroup(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || gone(err) {
			continue // its daemon lives, or somebody else removes it
		}
		if err != nil {
			return err
		}
		err = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		if err == nil || gone(err) {
			err = removeCgroup(dir)
		}
		if err := errors.Join(err, held.Close()); err != nil {
			return fmt.Errorf("cgroup: end what a crashed daemon left: %w", err)
		}
	}
	return nil
}

// gone is true of the errors for a group that was removed meanwhile.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV)
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

// removeCgroup removes dir and what is below it, once nothing lives there any
// more.
func removeCgroup(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cgroupEmpties)
	defer cancel()
	if err := cgroup.Await(ctx, dir, cgroup.Populated, 0); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return removeEmpty(dir)
}

// cgroupEmpties bounds the wait for killed processes.
const cgroupEmpties = 10 * time.Second

func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeEmpty(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cgroup: remove %s: %w", dir, err)
	}
	return nil
}
