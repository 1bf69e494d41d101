package jail

import (
	"slices"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
)

// Namespace flags of clone and unshare: NEWNS, NEWCGROUP, NEWUTS, NEWIPC,
// NEWUSER, NEWPID, NEWNET and NEWTIME.
const namespaceFlags = 0x7e020080

// Calls newer than the libseccomp we build with (fchmodat2, cachestat, statmount
// …) have no name in it and so are ENOSYS; libraries fall back.

// ExecFilter is what every command of a jail may ask of the kernel. It is an
// allow-list: a call that is not named here does not exist (ENOSYS), a call that
// is named and refused is EPERM, so that programs with a fallback find it.
func ExecFilter() *seccomp.Filter {
	f := &seccomp.Filter{
		Errno:   map[string]unix.Errno{},
		Kill:    killed(),
		AllowIf: conditional(),
	}
	for _, list := range allowed() {
		f.Allow = append(f.Allow, list.calls...)
	}
	for errno, names := range refused() {
		for _, name := range names {
			f.Errno[name] = errno
		}
	}
	// The filter beneath, sandbox-init's, has the answer to these: of two
	// filters an error would win over a notice.
	f.Allow = append(f.Allow, watched()...)
	f.Allow = append(f.Allow, watchedFallbacks()...)
	// What the address families' rules leave is not supported here, which is
	// what a program expects of a kernel without them.
	f.Errno["socket"] = unix.EAFNOSUPPORT
	f.Errno["socketpair"] = unix.EAFNOSUPPORT
	return f
}

// InitFilter is what sandbox-init itself may ask for once it serves: the
// commands' list, for they inherit this filter, and what it takes to fork and
// mind them. Calls that the daemon wants to know of wait for its word here; see
// notices.go.
func InitFilter() *seccomp.Filter {
	f := ExecFilter()
	f.Notify = append(watched(), watchedFallbacks()...)
	f.Notify = append(f.Notify, "listen")
	f.Allow = slices.DeleteFunc(f.Allow, func(name string) bool { return slices.Contains(f.Notify, name) })
	f.AllowIf = append(f.AllowIf, watchedRules()...)
	own := []string{
		"clone3",            // into the command's cgroup; it has no capability for a namespace
		"setgroups",         // the command's ids
		"setresgid",         //
		"setresuid",         //
		"capset",            // dropping the command's capabilities
		"seccomp",           // the command's filter
		"pidfd_send_signal", // also allowed to commands
	}
	for _, name := range own {
		delete(f.Errno, name)
		if !slices.Contains(f.Allow, name) {
			f.Allow = append(f.Allow, name)
		}
	}
	f.AllowIf = without(f.AllowIf, "seccomp")
	return f
}

func without(rules []seccomp.Rule, name string) []seccomp.Rule {
	var out []seccomp.Rule
	for _, r := range rules {
		if r.Name != name {
			out = append(out, r)
		}
	}
	return out
}

type callList struct {
	why   string
	calls []string
}

// allowed lists the calls that pass with any arguments.
func allowed() []callList {
	return []callList{
		{"files and folders, by path or descriptor; permissions, mounts and Landlock decide", []string{
			"access", "faccessat", "faccessat2", "chdir", "fchdir", "chmod", "fchmod", "fchmodat",
			"chown", "fchown", "fchownat", "lchown", "close", "close_range", "copy_file_range", "creat", "dup",
			"dup2", "dup3", "fallocate", "fadvise64", "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync",
			"ftruncate", "getcwd", "getdents", "getdents64", "link", "linkat", "lseek", "lstat", "mkdir", "mkdirat",
			"newfstatat", "open", "openat", "openat2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev",
			"pwritev2", "read", "readahead", "readlink", "readlinkat", "readv", "rename", "renameat", "renameat2",
			"rmdir", "sendfile", "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync",
			"sync_file_range", "syncfs", "tee", "truncate", "umask", "unlink", "unlinkat", "utime", "utimensat",
			"futimesat", "utimes", "vmsplice", "write", "writev",
		}},
		{"extended attributes of one's own files", []string{
			"fgetxattr", "flistxattr", "fremovexattr", "fsetxattr", "getxattr", "lgetxattr", "listxattr",
			"llistxattr", "lremovexattr", "lsetxattr", "removexattr", "setxattr",
		}},
		{"named pipes and watching one's own files", []string{
			"inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch",
		}},
		{"waiting and timers", []string{
			"alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "epoll_create", "epoll_create1",
			"epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd",
			"eventfd2", "getitimer", "gettimeofday", "nanosleep", "pause", "poll", "ppoll", "pselect6", "select",
			"setitimer", "signalfd", "signalfd4", "time", "timer_create", "timer_delete", "timer_getoverrun",
			"timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime", "times",
		}},
		{"memory", []string{
			"brk", "madvise", "membarrier", "memfd_create", "mincore", "mlock", "mlock2", "mlockall", "mmap",
			"mprotect", "mremap", "msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free",
			"pkey_mprotect", "remap_file_pages", "get_mempolicy",
		}},
		{"processes and threads; namespaces go through clone's rule", []string{
			"arch_prctl", "capget", "execve", "execveat", "exit", "exit_group", "fork", "futex",
			"futex_waitv", "get_robust_list", "get_thread_area", "getcpu", "getegid",
			"geteuid", "getgid", "getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getresgid",
			"getresuid", "getrlimit", "getrusage", "getsid", "gettid", "getuid", "kill", "pidfd_open",
			"pidfd_send_signal", "prlimit64", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending",
			"rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
			"rt_tgsigqueueinfo", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity",
			"sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity",
			"sched_yield", "set_robust_list", "set_thread_area", "set_tid_address", "setpgid", "setpriority",
			"setrlimit", "setsid", "sigaltstack", "tgkill", "tkill", "uname", "sysinfo", "vfork", "wait4", "waitid",
			"getrandom",
		}},
		{"changing ids: without capabilities only to what one is; programs call these to be sure", []string{
			"setfsgid", "setfsuid", "setgid", "setregid", "setreuid", "setuid",
		}},
		{"pipes and sockets; their families go through socket's rule", []string{
			"accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "pipe",
			"pipe2", "recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "shutdown",
		}},
		{"IPC, in a namespace of the jail's own", []string{
			"mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl",
			"msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmdt",
			"shmget",
		}},
		{"asynchronous files by the old interface, which databases use", []string{
			"io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit", "ioprio_get",
		}},
		{"restricting oneself further", []string{
			"landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self",
		}},
	}
}

// killed lists calls that no program makes by mistake.
func killed() []string {
	return []string{
		"kexec_file_load", "kexec_load", "init_module", "finit_module", "delete_module", "reboot",
	}
}

// refused lists calls that are known and not to be had.
func refused() map[unix.Errno][]string {
	return map[unix.Errno][]string{
		// "Not implemented": libraries then use what is allowed. clone3's flags
		// are behind a pointer that a filter cannot follow.
		unix.ENOSYS: {
			"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register",
			"add_key", "request_key", "keyctl", "memfd_secret",
		},
		unix.EPERM: {
			// Other processes.
			"process_madvise", "process_mrelease", "migrate_pages", "move_pages",
			// The kernel.
			"iopl", "ioperm", "lookup_dcookie", "nfsservctl", "_sysctl", "modify_ldt", "vhangup", "uselib", "ustat",
			"sysfs", "fanotify_mark",
			// Priorities and placement, which programs try without need.
			"sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set", "mbind", "set_mempolicy",
			"set_mempolicy_home_node",
			// Ids once they are dropped.
			"setgroups", "setresgid", "setresuid", "capset",
		},
	}
}

// watched lists calls that are refused (EPERM) and that a user wants to see in a
// receipt. None is made on a way that has to be fast: each costs a question to
// the daemon.
func watched() []string {
	return []string{
		// Mounts, roots, namespaces.
		"mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_tree", "move_mount", "fsopen",
		"fsconfig", "fsmount", "fspick", "mount_setattr", "quotactl", "quotactl_fd", "swapon", "swapoff",
		// Other processes.
		"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp",
		// The kernel.
		"bpf", "perf_event_open", "userfaultfd", "fanotify_init", "name_to_handle_at", "open_by_handle_at", "acct",
		"syslog",
		// Time and names.
		"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname",
	}
}

// watchedFallbacks lists calls that are refused and watched with the arguments
// that watchedRules leaves over.
func watchedFallbacks() []string { return []string{"mknod", "mknodat", "clone"} }
