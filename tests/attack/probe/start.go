package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// atStart is what the probe finds when it is started, before it does anything.
func atStart() []line {
	out := []line{
		{"A02 working directory", workingDirectory()},
		{"A13 descriptors", descriptors()},
		{"A05 /dev", listing("/dev")},
		{"A09 /sys", listing("/sys")},
		{"A09 /", listing("/")},
		{"A13 uid_map", strings.Join(strings.Fields(slurp("/proc/self/uid_map")), " ")},
		{"A13 gid_map", strings.Join(strings.Fields(slurp("/proc/self/gid_map")), " ")},
		{"A13 environment", environment()},
		{"F04 processes", processes()},
	}
	for _, field := range []string{
		"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups",
	} {
		out = append(out, line{"A13 status " + field, statusField("/proc/self/status", field)})
	}
	return append(out, mounts()...)
}

func slurp(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return text(err)
	}
	return string(b)
}

// workingDirectory must be a path of the jail's own tree.
func workingDirectory() string {
	dir, err := os.Getwd()
	if err != nil {
		return text(err)
	}
	return dir
}

// descriptors are those inherited: the runtime's own are of these kinds.
func descriptors() string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return text(err)
	}
	var out []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(target, "anon_inode:[event") || strings.HasPrefix(target, "/proc/") {
			continue // closed meanwhile, the runtime's poller, this listing
		}
		kind, _, _ := strings.Cut(target, ":")
		out = append(out, e.Name()+" "+kind)
	}
	return strings.Join(out, ", ")
}

func listing(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return text(err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// environment is the names only.
func environment() string {
	var names []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// processes are the programs of all that can be seen, without this one.
func processes() string {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return text(err)
	}
	var out []string
	for _, dir := range dirs {
		if name := statusField(dir+"/status", "Name"); dir != fmt.Sprintf("/proc/%d", os.Getpid()) {
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

func statusField(path, field string) string {
	for l := range strings.Lines(slurp(path)) {
		if name, value, ok := strings.Cut(l, ":"); ok && name == field {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return "absent"
}

// mounts is each mount with the flags that protect, and what it must not have.
func mounts() []line {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return []line{{"A09 mountinfo", text(err)}}
	}
	defer file.Close()
	var out []line
	for lines := bufio.NewScanner(file); lines.Scan(); {
		left, right, _ := strings.Cut(lines.Text(), " - ")
		fields, source := strings.Fields(left), strings.Fields(right)
		facts := []string{source[0]}
		for _, flag := range []string{"rw", "ro", "nosuid", "nodev", "noexec"} {
			if slices.Contains(strings.Split(fields[5], ","), flag) {
				facts = append(facts, flag)
			}
		}
		for _, tag := range fields[6:] { // shared:1, master:2 …
			kind, _, _ := strings.Cut(tag, ":")
			facts = append(facts, kind)
		}
		out = append(out, line{"A09 mount " + fields[4], strings.Join(facts, " ")})
	}
	return out
}
