package kernel

import (
	"strings"
	"testing"
)

// good is a host on which everything holds.
func good() Features {
	yes := Trial{OK: true}
	f := Features{
		Release: "6.18.44-amd64", LandlockABI: 7, LandlockErrata: signalErratum, Landlock: yes, LandlockScopes: yes, Seccomp: yes,
		CgroupV2Dir: "/sys/fs/cgroup", CgroupOwnDir: "/sys/fs/cgroup/x", CgroupControllers: []string{"cpu", "io", "memory", "pids"},
		CgroupKill: yes, CgroupFreeze: yes, CloneIntoCgroup: yes, Namespaces: map[string]Trial{},
		UserNS: yes, ProcMount: yes, Overlay: yes, MountAPI: yes, Pidfd: yes, Openat2: yes, MemfdSealing: yes, MemfdExec: yes,
		Nftables: yes, Veth: yes, Sysctls: map[string]string{},
	}
	for _, name := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		f.Namespaces[name] = yes
	}
	for _, s := range wantedSysctls {
		f.Sysctls[s.path] = "100"
		if s.accept != nil {
			f.Sysctls[s.path] = s.accept[0]
		}
	}
	return f
}

func TestChecksOfAGoodHost(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range good().Checks() {
		if c.Status != OK || c.Consequence != "" || c.Remedy != "" {
			t.Errorf("%+v", c)
		}
		if seen[c.Name] || c.Name == "" || c.Found == "" || c.Needed == "" {
			t.Errorf("twice, or empty: %+v", c)
		}
		seen[c.Name] = true
	}
}

// Each fault shows in exactly the check that it belongs to, with a consequence
// and a remedy.
func TestChecksNameTheFault(t *testing.T) {
	no := Trial{Err: "boom"}
	tests := []struct {
		name   string
		spoil  func(*Features)
		status Status
		found  string
	}{
		{"kernel", func(f *Features) { f.Release = "6.1.0-18-amd64" }, Warn, "6.1.0"},
		{"kernel", func(f *Features) { f.Release = "nonsense" }, Warn, "nonsense"},
		{"landlock", func(f *Features) { f.LandlockABI = 0 }, Missing, "none"},
		{"landlock", func(f *Features) { f.Landlock = no }, Missing, "boom"},
		{"landlock", func(f *Features) { f.LandlockABI, f.LandlockScopes = 5, no }, Missing, "ABI 5, boom"},
		{"landlock", func(f *Features) { f.LandlockErrata = 1 }, Missing, "threads"},
		{"seccomp", func(f *Features) { f.Seccomp = no }, Missing, "boom"},
		{"namespace user", func(f *Features) { delete(f.Namespaces, "user") }, Missing, ""},
		{"user namespace with two id ranges", func(f *Features) { f.UserNS = no }, Missing, "boom"},
		{"procfs in a user namespace", func(f *Features) { f.ProcMount = no }, Missing, "boom"},
		{"overlay in a user namespace", func(f *Features) { f.Overlay = no }, Missing, "boom"},
		{"new mount API", func(f *Features) { f.MountAPI = no }, Missing, "boom"},
		{"cgroup.kill", func(f *Features) { f.CgroupKill = no }, Missing, "boom"},
		{"cgroup.freeze", func(f *Features) { f.CgroupFreeze = no }, Missing, "boom"},
		{"clone into a cgroup", func(f *Features) { f.CloneIntoCgroup = no }, Missing, "boom"},
		{"pidfd", func(f *Features) { f.Pidfd = no }, Missing, "boom"},
		{"openat2", func(f *Features) { f.Openat2 = no }, Missing, "boom"},
		{"sealed memory files", func(f *Features) { f.MemfdSealing = no }, Missing, "boom"},
		{"executable memory files", func(f *Features) { f.MemfdExec = no }, Missing, "boom"},
		{"veth", func(f *Features) { f.Veth = no }, Missing, "boom"},
		{"nftables", func(f *Features) { f.Nftables = no }, Missing, "boom"},
		{"cgroup controller pids", func(f *Features) { f.CgroupControllers = []string{"cpu", "io", "memory"} }, Missing, "cpu io memory"},
		{"cgroup controller cpu", func(f *Features) {
			f.CgroupControllers, f.CgroupHostControllers = []string{"io", "memory", "pids"}, []string{"cpu"}
		}, Warn, `"cpu" on the host`},
		{"sysctl user.max_user_namespaces", func(f *Features) { f.Sysctls["user/max_user_namespaces"] = "0" }, Missing, "0"},
		{"sysctl kernel.io_uring_disabled", func(f *Features) { f.Sysctls["kernel/io_uring_disabled"] = "0" }, Warn, "0"},
		{"sysctl kernel.yama.ptrace_scope", func(f *Features) { delete(f.Sysctls, "kernel/yama/ptrace_scope") }, Warn, "not in this kernel"},
		{"sysctl fs.protected_fifos", func(f *Features) { f.Sysctls["fs/protected_fifos"] = "unreadable" }, Warn, "unreadable"},
		{"modules", func(f *Features) { f.Modules = []string{"af_alg", "vsock"} }, Warn, "af_alg vsock"},
		{"processor", func(f *Features) { f.Vulnerable = []string{"mds"} }, Warn, "mds"},
	}
	for _, tt := range tests {
		f := good()
		tt.spoil(&f)
		for _, c := range f.Checks() {
			if c.Name != tt.name {
				if c.Status != OK {
					t.Errorf("%s: %+v is not ok either", tt.name, c)
				}
				continue
			}
			if c.Status != tt.status || !strings.Contains(c.Found, tt.found) || c.Consequence == "" || c.Remedy == "" {
				t.Errorf("%s: got %+v, want %s with %q, a consequence and a remedy", tt.name, c, tt.status, tt.found)
			}
		}
	}
}

func TestNoCgroupV2(t *testing.T) {
	f := good()
	f.CgroupV2Dir, f.CgroupControllers = "", nil
	missing := 0
	for _, c := range f.Checks() {
		if strings.HasPrefix(c.Name, "cgroup controller") && c.Found == "cgroup v2 is not mounted" {
			missing++
		}
	}
	if missing != 3 {
		t.Errorf("%d controllers are said to be missing for that reason, want 3", missing)
	}
}

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"6.12.0": true, "6.12-rc1": true, "6.12": true, "7.0.1": true, "10.1": true, "6.11.99": false, "5.20.0": false,
		"": false, "6": false, "x.y": false, "6.x": false,
	} {
		if got := atLeast(release, 6, 12); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}
