package jail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/cgroup"
)

// The cgroup files are written plainly rather than through a library: a jail
// needs five of them, creating it is on the caller's path, and the common
// library assumes that cgroup v2 is mounted at /sys/fs/cgroup.

// controllers that jails use, with what each one enforces.
var controllers = []struct{ name, limit string }{
	{"memory", "memory"}, {"pids", "pids"}, {"cpu", "cpus"},
}

// group is one cgroup v2 folder.
type group string

func (g group) child(name string) group { return group(filepath.Join(string(g), name)) }

func (g group) write(file, value string) error {
	// Not os.WriteFile: a missing file must not be "created".
	fd, err := unix.Open(filepath.Join(string(g), file), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("jail: cgroup %s: %w", file, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("jail: cgroup %s: %w", file, err)
	}
	return nil
}

func (g group) read(file string) ([]byte, error) {
	fd, err := unix.Open(filepath.Join(string(g), file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// number reads a file that holds one number, -1 if there is none.
func (g group) number(file string) int64 {
	b, err := g.read(file)
	if err != nil {
		return -1
	}
	v, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return -1
	}
	return v
}

// key reads one value of a "key value" file, -1 if there is none.
func (g group) key(file, key string) int64 {
	b, err := g.read(file)
	if err != nil {
		return -1
	}
	return valueOf(b, key)
}

func (g group) make() error {
	if err := os.Mkdir(string(g), 0o755); err != nil {
		return fmt.Errorf("jail: cgroup: %w", err)
	}
	return nil
}

// enable passes the controllers on to the children.
func (g group) enable(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return g.write("cgroup.subtree_control", "+"+strings.Join(names, " +"))
}

func (g group) usage() Usage {
	u := Usage{
		CPU:        -1,
		Disk:       -1,
		Inodes:     -1,
		MemoryNow:  g.number("memory.current"),
		MemoryPeak: g.number("memory.peak"),
		PidsPeak:   g.number("pids.peak"),
	}
	if v := g.key("cpu.stat", "usage_usec"); v >= 0 {
		u.CPU = time.Duration(v) * time.Microsecond
	}
	return u
}

// oomKills counts processes of g and beneath that the kernel killed for memory.
func (g group) oomKills() int64 {
	return max(g.key("memory.events", "oom_kill"), 0)
}

// pidsRefused counts forks that the jail's limit of processes has refused so
// far. The kernel counts them where the limit is, not where the fork was.
func (j *Jail) pidsRefused() int64 {
	if !slices.Contains(j.m.host.controllers, "pids") {
		return 0
	}
	return max(j.cgroup.key("pids.events", "max"), 0)
}

// await waits until a key of cgroup.events has a value.
func (g group) await(ctx context.Context, key string, want int) error {
	if err := cgroup.Await(ctx, string(g), key, want); err != nil {
		return fmt.Errorf("jail: %w", err)
	}
	return nil
}

// kill ends every process in g and beneath at once.
func (g group) kill() error {
	err := g.write("cgroup.kill", "1")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// remove removes g and the groups beneath, which must be empty of processes.
func (g group) remove() error {
	entries, err := os.ReadDir(string(g))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("jail: cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := g.child(e.Name()).remove(); err != nil {
				return err
			}
		}
	}
	return g.rmdir()
}

func (g group) rmdir() error {
	err := unix.Rmdir(string(g))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("jail: remove cgroup: %w", err)
	}
	return nil
}

// destroy kills, waits and removes.
func (g group) destroy(ctx context.Context) error {
	if err := g.kill(); err != nil {
		return err
	}
	if err := g.await(ctx, cgroup.Populated, 0); err != nil {
		return err
	}
	return g.remove()
}

// limit writes a jail's limits; what names says is there is written.
func (g group) limit(l Limits, names []string) error {
	for _, name := range names {
		if err := g.hold(name, l); err != nil {
			return err
		}
	}
	if !slices.Contains(names, "memory") {
		return nil
	}
	if err := g.write("memory.oom.group", "1"); err != nil {
		return err
	}
	// Without swap accounting there is no such file, and no swap either as far as
	// this group goes.
	if _, err := os.Stat(filepath.Join(string(g), "memory.swap.max")); err != nil {
		return nil
	}
	return g.write("memory.swap.max", "0")
}

// hold writes the limit of one controller.
func (g group) hold(controller string, l Limits) error {
	switch controller {
	case "memory":
		return g.write("memory.max", strconv.FormatInt(l.Memory, 10))
	case "pids":
		return g.write("pids.max", strconv.Itoa(l.Pids+initThreads))
	case "cpu":
		const period = 100000
		return g.write("cpu.max", fmt.Sprintf("%d %d", int64(l.CPUs*period), period))
	}
	return nil
}

// initThreads is what sandbox-init itself needs of pids.max.
const initThreads = 16

func noCgroup(dir string, err error) error {
	return &UnsupportedError{
		Feature: "cgroup v2", Found: err.Error(), Needed: fmt.Sprintf("a cgroup v2 folder at %q", dir),
		Remedy: "run under the systemd unit with Delegate=yes, or give the daemon another folder",
	}
}

// enableControllers passes what this host has of the controllers on to g's
// children and returns which those are, and whether there is also the one for I/O.
func enableControllers(g group) (have, missing []string, io bool, err error) {
	b, err := g.read("cgroup.controllers")
	if err != nil {
		return nil, nil, false, noCgroup(string(g), err)
	}
	offered := strings.Fields(string(b))
	for _, c := range controllers {
		found := false
		for _, o := range offered {
			found = found || o == c.name
		}
		if found {
			have = append(have, c.name)
		} else {
			missing = append(missing, c.name)
		}
	}
	// All of them, not only those used here: the daemon's own group is beneath,
	// and what it shows is what was delegated.
	return have, missing, slices.Contains(offered, "io"), g.enable(offered)
}

// takeBack passes nothing on to g's children any more, as far as they allow it.
func (g group) takeBack() error {
	b, err := g.read("cgroup.subtree_control")
	if err != nil {
		return fmt.Errorf("jail: cgroup.subtree_control: %w", err)
	}
	for name := range strings.FieldsSeq(string(b)) {
		if err := g.write("cgroup.subtree_control", "-"+name); err != nil {
			return err
		}
	}
	return nil
}
