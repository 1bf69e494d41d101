package systemd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestUnifiedPath(t *testing.T) {
	tests := []struct {
		name, text, want string
	}{
		{"unit", "0::/system.slice/sandboxd.service\n", "/system.slice/sandboxd.service"},
		{"hybrid", "4:memory:/x\n0::/system.slice/sandboxd.service\n", "/system.slice/sandboxd.service"},
		{"started again", "0::/system.slice/sandboxd.service/supervisor\n", "/system.slice/sandboxd.service"},
		{"scope", "0::/user.slice/run-1.scope\n", "/user.slice/run-1.scope"},
		{"root", "0::/\n", ""},
		{"a session's", "0::/user.slice\n", ""},
		{"outside the namespace", "0::/../system.slice/sandboxd.service\n", ""},
		{"version 1 only", "4:memory:/system.slice/sandboxd.service\n", ""},
		{"empty", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := unifiedPath(tt.text)
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if (err != nil) != (tt.want == "") || err != nil && !errors.Is(err, ErrNotDelegated) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// cgroup2 finds a cgroup v2 hierarchy, wherever this host has it.
func cgroup2(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	t.Fatal("this test needs root and a mounted cgroup v2 hierarchy")
	return ""
}

func TestVacate(t *testing.T) {
	dir, err := os.MkdirTemp(cgroup2(t), "sandboxd-vacate-test-*")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, d := range []string{filepath.Join(dir, supervisorGroup), dir} {
			if err := os.Remove(d); err != nil {
				t.Error(err)
			}
		}
	})
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second start finds what the first one made
		if err := vacate(dir, cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{"cgroup.procs": "", supervisorGroup + "/cgroup.procs": pid, "cgroup.subtree_control": ""} {
			b, err := os.ReadFile(filepath.Join(dir, path))
			if got := strings.TrimSpace(string(b)); err != nil || got != want {
				t.Errorf("%s holds %q, want %q (%v)", path, got, want, err)
			}
		}
	}
}
