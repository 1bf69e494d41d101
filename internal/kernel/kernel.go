package kernel

import "context"

// Status of a Check.
type Status string

// The states of a Check: it holds; it does not, and something is weaker for it;
// it does not, and sandboxd cannot do its job.
const (
	OK      Status = "ok"
	Warn    Status = "warn"
	Missing Status = "missing"
)

// A Check is one line of doctor's answer.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Found is what this host has, Needed what sandboxd wants.
	Found  string `json:"found"`
	Needed string `json:"needed"`
	// Consequence and Remedy are empty when Status is OK.
	Consequence string `json:"consequence,omitempty"`
	Remedy      string `json:"remedy,omitempty"`
}

// A Trial is the outcome of trying a feature; Err says why it does not work.
type Trial struct {
	OK  bool   `json:"ok"`
	Err string `json:"error,omitempty"`
}

// Features are what the kernel offers.
type Features struct {
	Release     string `json:"release"`
	LandlockABI int    `json:"landlock_abi"`
	// LandlockErrata are the corrections that the kernel reports, as a bit set.
	LandlockErrata int   `json:"landlock_errata"`
	Seccomp        Trial `json:"seccomp"`
	// CgroupV2Dir is where cgroup v2 is mounted, "" if nowhere.
	CgroupV2Dir       string   `json:"cgroup_v2_dir"`
	CgroupControllers []string `json:"cgroup_controllers"`
	CgroupKill        Trial    `json:"cgroup_kill"`
	CgroupFreeze      Trial    `json:"cgroup_freeze"`
	CloneIntoCgroup   Trial    `json:"clone_into_cgroup"`
	// Namespaces by name: user, mnt, pid, net, ipc, uts, cgroup, time.
	Namespaces   map[string]Trial `json:"namespaces"`
	UserNS       Trial            `json:"user_ns"` // with a uid map of two ranges
	Overlay      Trial            `json:"overlay"` // mounted inside a user namespace
	Pidfd        Trial            `json:"pidfd"`
	Openat2      Trial            `json:"openat2"`
	MemfdSealing Trial            `json:"memfd_sealing"`
	MountAPI     Trial            `json:"mount_api"` // fsopen, open_tree, mount_setattr, move_mount
	IDMapped     Trial            `json:"idmapped_mounts"`
	Nftables     Trial            `json:"nftables"`
	Veth         Trial            `json:"veth"`
	// Sysctls by path under /proc/sys, "" for one that does not exist.
	Sysctls map[string]string `json:"sysctls"`
	// Modules are loaded modules that a sandbox had better not reach.
	Modules []string `json:"modules"`
}

// HelperArgs are the arguments after which a program must call Main at once.
var HelperArgs = []string{"role", "kernel-probe"}

// Probe tries everything. exe is this program, usually /proc/self/exe; it is
// started with HelperArgs for what needs a process of its own.
func Probe(ctx context.Context, exe string) Features {
	return Features{}
}

// Checks says what the features mean for sandboxd.
func (f Features) Checks() []Check { return nil }

// Main is the helper: it tries what its standard input names, prints the
// outcome as JSON, and ends the process.
func Main() {}
