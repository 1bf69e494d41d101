package kernel

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is also the program that Probe starts again.
func TestMain(m *testing.M) {
	if n := len(HelperArgs); len(os.Args) > n && slices.Equal(os.Args[1:n+1], HelperArgs) {
		// Not os.Exit: the race detector would sleep for a second in it.
		unix.Exit(Main(os.Args[n+1:]))
	}
	os.Exit(m.Run())
}

// state is what a probe must leave as it was.
func state(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, file := range []string{"/proc/self/mountinfo", "/proc/net/dev"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			name, _, _ := strings.Cut(line, ":")
			if file != "/proc/net/dev" {
				name = line
			}
			out = append(out, name)
		}
	}
	var f Features
	f.CgroupV2Dir = cgroupMount()
	groups, err := filepath.Glob(filepath.Join(ownCgroup(f.CgroupV2Dir), "sandboxd-probe-*"))
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, groups...)
	for _, link := range []string{"user", "mnt", "net", "pid", "ipc", "uts", "cgroup"} {
		name, err := os.Readlink("/proc/self/ns/" + link)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, name)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, fmt.Sprint(len(fds), " descriptors"))
}

// Whatever this kernel is, it is one that sandboxd's own tests run on: what
// those need must be found. What differs between hosts is compared with what
// the host says elsewhere.
func TestProbe(t *testing.T) {
	Probe(t.Context(), "/proc/self/exe") // opens what Go keeps open
	before := state(t)
	f := Probe(t.Context(), "/proc/self/exe")
	if after := state(t); !slices.Equal(before, after) {
		t.Errorf("the probe changed the host:\nbefore %q\nafter  %q", before, after)
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid > 0 || err != unix.ECHILD {
		t.Errorf("children are left: %d, %v", pid, err)
	}
	for name, trial := range map[string]Trial{
		"seccomp": f.Seccomp, "landlock": f.Landlock, "scopes": f.LandlockScopes, "userns": f.UserNS,
		"proc": f.ProcMount, "overlay": f.Overlay, "mount API": f.MountAPI, "pidfd": f.Pidfd, "openat2": f.Openat2,
		"sealing": f.MemfdSealing, "memfd exec": f.MemfdExec, "nftables": f.Nftables, "veth": f.Veth,
		"cgroup.kill": f.CgroupKill, "cgroup.freeze": f.CgroupFreeze, "clone into cgroup": f.CloneIntoCgroup,
	} {
		if !trial.OK {
			t.Errorf("%s: %s", name, trial.Err)
		}
	}
	for name, trial := range f.Namespaces {
		if _, err := os.Stat("/proc/self/ns/" + name); trial.OK != (err == nil) {
			t.Errorf("namespace %s: %+v, and /proc/self/ns says %v", name, trial, err)
		}
	}
	if f.LandlockABI < scopeABI || f.Release == "" || f.CgroupOwnDir == "" || len(f.Namespaces) != 8 {
		t.Errorf("features: %+v", f)
	}
	if _, err := json.Marshal(f); err != nil {
		t.Error(err)
	}
	for _, c := range f.Checks() {
		t.Logf("%-8s %-36s %s", c.Status, c.Name, c.Found)
	}
}

// A helper that cannot run must not look like a kernel that can do everything,
// nor leave its features out.
func TestProbeWithoutHelper(t *testing.T) {
	for _, exe := range []string{"/no/such/program", "/bin/false", "/bin/echo"} {
		f := Probe(t.Context(), exe)
		if exe == "/bin/echo" {
			// It writes, as the helper does, and can be killed as well.
			f.CgroupKill = Trial{Err: "not looked at"}
		}
		for name, trial := range map[string]Trial{
			"seccomp": f.Seccomp, "landlock": f.Landlock, "scopes": f.LandlockScopes, "userns": f.UserNS, "proc": f.ProcMount,
			"overlay": f.Overlay, "mount API": f.MountAPI, "nftables": f.Nftables, "veth": f.Veth, "cgroup.kill": f.CgroupKill,
		} {
			if trial.OK || trial.Err == "" {
				t.Errorf("%s: %s: %+v", exe, name, trial)
			}
		}
	}
}

func TestMainRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {""}, {"confin"}, {helperWait, "x"}} {
		if code := Main(args); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}
