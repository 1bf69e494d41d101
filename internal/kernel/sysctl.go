package kernel

import (
	"slices"
	"strings"
)

// A wantedSysctl is a setting that makes the host harder to attack. sandboxd
// sets none of them: they are the operator's, and mean the whole host.
type wantedSysctl struct {
	path   string
	accept []string // the first is what we recommend
	// absent is the status if the kernel does not have the setting.
	absent      Status
	consequence string
}

var wantedSysctls = []wantedSysctl{
	{"user/max_user_namespaces", nil, OK, "no jail can be started"},
	{"kernel/io_uring_disabled", []string{"2"}, OK, "io_uring stays reachable for whatever runs outside jails; inside, seccomp refuses it"},
	{"dev/tty/legacy_tiocsti", []string{"0"}, Warn, "a process can put input into its terminal; in jails, seccomp refuses it"},
	{"kernel/unprivileged_bpf_disabled", []string{"1", "2"}, OK, "unprivileged users can load BPF programs; in jails, seccomp refuses it"},
	{"vm/unprivileged_userfaultfd", []string{"0"}, OK, "unprivileged users can stop the kernel in the middle of a copy; in jails, seccomp refuses it"},
	{"kernel/yama/ptrace_scope", []string{"2", "1", "3"}, Warn, "a process can trace any other of its user; in jails, seccomp refuses it"},
	{"kernel/kptr_restrict", []string{"2", "1"}, Warn, "kernel addresses can be read, which exploits need"},
	{"kernel/dmesg_restrict", []string{"1"}, Warn, "the kernel's log can be read by all users"},
	{"kernel/perf_event_paranoid", []string{"3", "4", "2"}, OK, "unprivileged users can measure the kernel"},
	{"fs/protected_hardlinks", []string{"1"}, Warn, "users can hold on to files of others with hard links"},
	{"fs/protected_symlinks", []string{"1"}, Warn, "links in shared folders are followed for others"},
	{"fs/protected_fifos", []string{"2", "1"}, Warn, "a planted FIFO in a shared folder is opened by others"},
	{"fs/protected_regular", []string{"2", "1"}, Warn, "a planted file in a shared folder is opened by others"},
}

func (s wantedSysctl) check(values map[string]string) Check {
	name := strings.ReplaceAll(s.path, "/", ".")
	needed := "more than 0"
	if s.accept != nil {
		needed = strings.Join(s.accept, " or ")
	}
	value, exists := values[s.path]
	if !exists {
		return check("sysctl "+name, s.absent, "not in this kernel", needed, s.consequence, "boot a kernel that has the setting")
	}
	if s.accept == nil {
		// The one setting that is a limit, and needed.
		if value == "0" || value == "unreadable" {
			return check("sysctl "+name, Missing, value, needed, s.consequence, "set "+name+" to at least the number of jails")
		}
		return check("sysctl "+name, OK, value, needed, "", "")
	}
	status := Warn
	if slices.Contains(s.accept, value) {
		status = OK
	}
	return check("sysctl "+name, status, value, needed, s.consequence,
		"put \""+name+" = "+s.accept[0]+"\" into a file in /etc/sysctl.d")
}
