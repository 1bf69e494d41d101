package leftovers

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// An Inventory maps a kind ("process", "mount" …) to what there is of it.
type Inventory map[string]map[string]bool

// Take reads the machine's state now. It is meant for root: as another user it
// sees less and therefore says less.
func Take() (Inventory, error) {
	inv := Inventory{}
	if err := inv.processes(); err != nil {
		return nil, fmt.Errorf("leftovers: processes: %w", err)
	}
	if err := inv.mounts(); err != nil {
		return nil, fmt.Errorf("leftovers: mounts: %w", err)
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("leftovers: links: %w", err)
	}
	for _, l := range links {
		inv.add("link", l.Name)
	}
	inv.cgroups("/sys/fs/cgroup")
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		inv.add("loop device", l)
	}
	for _, pattern := range []string{"sandboxd*", "sandboxctl*"} {
		found, _ := filepath.Glob(filepath.Join(os.TempDir(), pattern))
		for _, f := range found {
			inv.add("temporary file", f)
		}
	}
	named, _ := filepath.Glob("/run/netns/*")
	for _, n := range named {
		inv.add("named network namespace", n)
	}
	return inv, nil
}

func (inv Inventory) add(kind, what string) {
	if inv[kind] == nil {
		inv[kind] = map[string]bool{}
	}
	inv[kind][what] = true
}

// processes notes our processes by pid and, of all processes, the namespaces
// they keep alive.
func (inv Inventory) processes() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join("/proc", e.Name())
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // not a process, or it has just ended
		}
		name := strings.TrimSpace(string(comm))
		if strings.HasPrefix(name, "sandbox") {
			inv.add("process", name+" "+e.Name())
		}
		for _, kind := range []string{"net", "mnt", "user", "pid"} {
			if ns, err := os.Readlink(filepath.Join(dir, "ns", kind)); err == nil {
				inv.add("namespace", ns)
			}
		}
	}
	return nil
}

func (inv Inventory) mounts() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			inv.add("mount", fields[4])
		}
	}
	return nil
}

func (inv Inventory) cgroups(root string) {
	// A folder that vanishes while we walk is no leftover.
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(filepath.Base(path), "sandboxd") {
			inv.add("cgroup", path)
		}
		return nil
	})
}

// Since lists what is there now and was not before, sorted, as "kind: what".
func (inv Inventory) Since(before Inventory) []string {
	var left []string
	for kind, items := range inv {
		for item := range items {
			if !before[kind][item] {
				left = append(left, kind+": "+item)
			}
		}
	}
	sort.Strings(left)
	return left
}

// Settle takes inventories until nothing is left of what came since before, or
// until the time is up; it returns what is left then. The kernel takes network
// namespaces and links down after the last process is gone, in the background.
func Settle(before Inventory, wait time.Duration) ([]string, error) {
	for end := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		now, err := Take()
		if err != nil {
			return nil, err
		}
		left := now.Since(before)
		if len(left) == 0 || time.Now().After(end) {
			return left, nil
		}
	}
}
