package kernel

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A Trial is the outcome of trying a feature; Err says why it does not work.
type Trial struct {
	OK  bool   `json:"ok"`
	Err string `json:"error,omitempty"`
}

// tried turns an error into a Trial.
func tried(err error) Trial {
	if err != nil {
		return Trial{Err: err.Error()}
	}
	return Trial{OK: true}
}

// Features are what the kernel offers to this process.
type Features struct {
	Release string `json:"release"`
	// LandlockABI is 0 if there is no Landlock; LandlockErrata are the
	// corrections that the kernel reports, as a bit set.
	LandlockABI    int `json:"landlock_abi"`
	LandlockErrata int `json:"landlock_errata"`
	// Landlock confines paths, LandlockScopes signals and abstract sockets.
	Landlock       Trial `json:"landlock"`
	LandlockScopes Trial `json:"landlock_scopes"`
	Seccomp        Trial `json:"seccomp"`
	// CgroupV2Dir is where cgroup v2 is mounted, "" if nowhere; CgroupOwnDir is
	// this process's own folder there, CgroupControllers are the controllers
	// that it offers, and CgroupHostControllers those of the whole host.
	CgroupV2Dir           string   `json:"cgroup_v2_dir"`
	CgroupOwnDir          string   `json:"cgroup_own_dir"`
	CgroupControllers     []string `json:"cgroup_controllers"`
	CgroupHostControllers []string `json:"cgroup_host_controllers"`
	CgroupKill            Trial    `json:"cgroup_kill"`
	CgroupFreeze          Trial    `json:"cgroup_freeze"`
	CloneIntoCgroup       Trial    `json:"clone_into_cgroup"`
	// Namespaces by name: user, mnt, pid, net, ipc, uts, cgroup, time.
	Namespaces map[string]Trial `json:"namespaces"`
	// UserNS is a user namespace, with all others, and two mapped ranges.
	UserNS Trial `json:"user_ns"`
	// ProcMount, Overlay and MountAPI are tried inside such a namespace.
	ProcMount    Trial `json:"proc_mount"`
	Overlay      Trial `json:"overlay"`
	MountAPI     Trial `json:"mount_api"` // fsopen, open_tree, mount_setattr, move_mount
	Pidfd        Trial `json:"pidfd"`
	Openat2      Trial `json:"openat2"`
	MemfdSealing Trial `json:"memfd_sealing"`
	MemfdExec    Trial `json:"memfd_exec"` // an integrity policy may refuse it
	Nftables     Trial `json:"nftables"`
	Veth         Trial `json:"veth"`
	// Sysctls by their path under /proc/sys; one that does not exist is absent.
	Sysctls map[string]string `json:"sysctls"`
	// Modules are the loaded ones that a sandbox had better not reach.
	Modules []string `json:"modules,omitempty"`
	// Vulnerable are the processor's weaknesses that the kernel calls unmitigated.
	Vulnerable []string `json:"vulnerable,omitempty"`
}

// Probe tries everything, in some tens of milliseconds. exe is this program,
// usually /proc/self/exe: it is started again with HelperArgs and more, and must
// then call Main. A probe that cannot run at all is a Trial with its reason.
func Probe(ctx context.Context, exe string) Features {
	f := Features{
		Release:      release(),
		Namespaces:   tryNamespaces(),
		Pidfd:        tried(tryPidfd()),
		Openat2:      tried(tryOpenat2()),
		MemfdSealing: tried(tryMemfdSealing()),
		MemfdExec:    tried(tryMemfdExec()),
		Sysctls:      readSysctls(),
		Modules:      loadedModules(),
		Vulnerable:   vulnerabilities(),
	}
	f.LandlockABI, f.LandlockErrata = landlockVersion()
	probeCgroup(ctx, exe, &f)

	confining := runHelper(ctx, exe, helperConfine, nil)
	f.Seccomp, f.Landlock, f.LandlockScopes = confining["seccomp"], confining["landlock"], confining["scopes"]

	mounting := runHelper(ctx, exe, helperMounts, userNamespace())
	f.UserNS, f.ProcMount = mounting["userns"], mounting["proc"]
	f.MountAPI, f.Overlay = mounting["mountapi"], mounting["overlay"]

	network := runHelper(ctx, exe, helperNetwork, networkNamespace())
	f.Nftables, f.Veth = network["nftables"], network["veth"]
	return f
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// sysctls that the checks look at.
var sysctls = []string{
	"kernel/io_uring_disabled", "dev/tty/legacy_tiocsti", "kernel/unprivileged_bpf_disabled",
	"vm/unprivileged_userfaultfd", "kernel/yama/ptrace_scope", "kernel/kptr_restrict", "kernel/dmesg_restrict",
	"kernel/perf_event_paranoid", "fs/protected_hardlinks", "fs/protected_symlinks", "fs/protected_fifos",
	"fs/protected_regular", "user/max_user_namespaces", "kernel/unprivileged_userns_clone",
	"kernel/apparmor_restrict_unprivileged_userns", "vm/memfd_noexec",
}

func readSysctls() map[string]string {
	out := map[string]string{}
	for _, name := range sysctls {
		b, err := os.ReadFile("/proc/sys/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			out[name] = "unreadable"
			continue
		}
		out[name] = strings.TrimSpace(string(b))
	}
	return out
}

// unwanted are modules whose sockets were the way into the page cache or the
// kernel in recent years. Opening such a socket would load them, so only what
// is loaded already is looked for.
var unwanted = []string{
	"af_alg", "algif_aead", "algif_hash", "algif_rng", "algif_skcipher", "rxrpc", "esp4", "esp6", "vsock", "tipc", "sctp", "rds",
}

func loadedModules() []string {
	b, err := os.ReadFile("/proc/modules")
	if err != nil {
		return nil // a kernel without modules
	}
	loaded := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(line, " ")
		loaded[name] = true
	}
	var out []string
	for _, name := range unwanted {
		if loaded[name] {
			out = append(out, name)
		}
	}
	return out
}

func vulnerabilities() []string {
	const dir = "/sys/devices/system/cpu/vulnerabilities"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		b, err := os.ReadFile(dir + "/" + e.Name())
		if err == nil && strings.HasPrefix(string(b), "Vulnerable") {
			out = append(out, e.Name())
		}
	}
	return out
}
