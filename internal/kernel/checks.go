package kernel

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

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

// Checks says what the features mean for sandboxd: first what it cannot do
// without, then limits, then what makes the host harder to attack.
func (f Features) Checks() []Check {
	out := []Check{f.checkRelease(), f.checkLandlock()}
	for _, t := range f.trials() {
		out = append(out, t.check())
	}
	out = append(out, f.checkControllers()...)
	for _, s := range wantedSysctls {
		out = append(out, s.check(f.Sysctls))
	}
	return append(out, f.checkModules(), f.checkProcessor())
}

// check fills in a Check; consequence and remedy are dropped when it is fine.
func check(name string, status Status, found, needed, consequence, remedy string) Check {
	c := Check{Name: name, Status: status, Found: found, Needed: needed}
	if status != OK {
		c.Consequence, c.Remedy = consequence, remedy
	}
	return c
}

// atLeast compares a release such as 6.18.44-amd64 with major.minor.
func atLeast(release string, major, minor int) bool {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return false
	}
	gotMajor, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	digits := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(parts[1])
	}
	gotMinor, err := strconv.Atoi(parts[1][:digits])
	if err != nil {
		return false
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}

func (f Features) checkRelease() Check {
	status := OK
	if !atLeast(f.Release, 6, 12) {
		status = Warn
	}
	return check("kernel", status, f.Release, "6.12 or newer",
		"an older kernel may do if the checks below hold, but it is not what sandboxd is tested on",
		"install a kernel of a current long-term series, with its latest fixes")
}

// signalErratum is Landlock's correction 2, see internal/confine.
const signalErratum = 1 << 1

func (f Features) checkLandlock() Check {
	found := "none"
	status := Missing
	switch {
	case f.LandlockABI == 0:
	case !f.Landlock.OK:
		found = fmt.Sprintf("ABI %d, %s", f.LandlockABI, f.Landlock.Err)
	case !f.LandlockScopes.OK:
		found = fmt.Sprintf("ABI %d, %s", f.LandlockABI, f.LandlockScopes.Err)
	case f.LandlockABI < 8 && f.LandlockErrata&signalErratum == 0:
		found = fmt.Sprintf("ABI %d without the correction for signals between threads", f.LandlockABI)
	default:
		found, status = fmt.Sprintf("ABI %d", f.LandlockABI), OK
	}
	return check("landlock", status, found, "ABI 6 or newer, with scopes for signals and abstract sockets",
		"no isolate worker, no proxy and no jail is started: Landlock is their second wall",
		"boot Linux 6.12 or newer with landlock in CONFIG_LSM or the lsm= parameter")
}

// trial is a Trial with what it means.
type trial struct {
	name        string
	Trial       Trial
	needed      string
	consequence string
	remedy      string
}

func (t trial) check() Check {
	if t.Trial.OK {
		return check(t.name, OK, "works", t.needed, "", "")
	}
	return check(t.name, Missing, t.Trial.Err, t.needed, t.consequence, t.remedy)
}

func (f Features) trials() []trial {
	const (
		noJails = "no jail can be started"
		newer   = "boot a newer kernel"
		config  = "boot a kernel that is configured with "
		own     = "run sandboxd as root, outside a container or in one that allows it; "
	)
	out := []trial{
		{"seccomp", f.Seccomp, "filters on all threads, killing a process", "nothing is started", config + "CONFIG_SECCOMP_FILTER"},
	}
	for _, name := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		out = append(out, trial{"namespace " + name, f.Namespaces[name], "can be made", noJails,
			own + "raise user.max_" + name + "_namespaces; " + config + "CONFIG_NAMESPACES"})
	}
	const cgroups = "mount cgroup v2 and let sandboxd make groups in its own (Delegate=yes in the unit)"
	return append(out,
		trial{"user namespace with two id ranges", f.UserNS, "can be made with all other namespaces", noJails,
			own + "raise user.max_user_namespaces"},
		trial{"procfs in a user namespace", f.ProcMount, "can be mounted with hidepid", noJails,
			"mount nothing over /proc: no ProtectKernelTunables=, ProtectKernelLogs=, ProtectProc= or ProcSubset= in the unit"},
		trial{"overlay in a user namespace", f.Overlay, "can be mounted and written", noJails, config + "CONFIG_OVERLAY_FS, 5.11 or newer"},
		trial{"new mount API", f.MountAPI, "fsopen, open_tree, mount_setattr, move_mount", noJails, newer + " (5.12)"},
		trial{"cgroup.kill", f.CgroupKill, "ends a frozen process", "a jail cannot be ended in one step", newer + " (5.14); " + cgroups},
		trial{"cgroup.freeze", f.CgroupFreeze, "freezes a process", "an idle jail cannot be frozen", newer + " (5.2); " + cgroups},
		trial{"clone into a cgroup", f.CloneIntoCgroup, "works", "a process would run for a moment without limits", newer + " (5.7); " + cgroups},
		trial{"pidfd", f.Pidfd, "open and signal", "processes could only be ended by a number that may be reused", newer + " (5.3)"},
		trial{"openat2", f.Openat2, "refuses magic links", "paths in a jail cannot be opened safely", newer + " (5.6)"},
		trial{"sealed memory files", f.MemfdSealing, "stay unchanged", "a jail could change the program that starts it", config + "CONFIG_MEMFD_CREATE"},
		trial{"executable memory files", f.MemfdExec, "can be executed", noJails,
			"set vm.memfd_noexec to 0 or 1, and let the integrity policy (IMA, IPE) accept memory files"},
		trial{"veth", f.Veth, "a pair can be made", "jails have no way out at all", config + "CONFIG_VETH"},
		trial{"nftables", f.Nftables, "a chain that drops, a rule on an interface", "jails have no way out at all", config + "CONFIG_NF_TABLES_INET"},
	)
}

func (f Features) checkControllers() []Check {
	found := "cgroup v2 is not mounted"
	if f.CgroupV2Dir != "" {
		found = fmt.Sprintf("%q in %s, %q on the host", strings.Join(f.CgroupControllers, " "), f.CgroupOwnDir,
			strings.Join(f.CgroupHostControllers, " "))
	}
	limits := []struct{ controller, lost string }{
		{"memory", "memory"}, {"pids", "the processes of all its users together"}, {"cpu", "processor time"},
	}
	out := make([]Check, 0, len(limits))
	for _, l := range limits {
		status := Missing
		switch {
		case slices.Contains(f.CgroupControllers, l.controller):
			status = OK
		case slices.Contains(f.CgroupHostControllers, l.controller):
			status = Warn // another process of this host may have it
		}
		out = append(out, check("cgroup controller "+l.controller, status, found, l.controller,
			"a jail cannot be limited in "+l.lost+"; sandboxd refuses to run without it unless limits are best-effort",
			"boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1) and delegate the controller to sandboxd"))
	}
	return out
}

func (f Features) checkModules() Check {
	status, found := OK, "none of them loaded"
	if len(f.Modules) > 0 {
		status, found = Warn, strings.Join(f.Modules, " ")
	}
	return check("modules", status, found, "no module for unusual sockets",
		"jails cannot open such sockets, but these modules let an unprivileged process write to files it may only read, on kernels without the fixes of 2026",
		"unload them and put them on modprobe's blacklist, if nothing on this host needs them")
}

func (f Features) checkProcessor() Check {
	status, found := OK, "none unmitigated"
	if len(f.Vulnerable) > 0 {
		status, found = Warn, strings.Join(f.Vulnerable, " ")
	}
	return check("processor", status, found, "no weakness that the kernel calls vulnerable",
		"a tenant might read memory of another one, or of the host, through the processor",
		"update the microcode and the hypervisor, and do not boot with mitigations=off")
}
