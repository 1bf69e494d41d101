package attack

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What each attempt must get. Where two answers are as good (a module is there
// or not), both stand, with | between them; a * at the beginning stands for the
// host's own file system.
func matches(got, want string) bool {
	if rest, ok := strings.CutPrefix(want, "*"); ok {
		_, fields, _ := strings.Cut(got, " ")
		return fields == strings.TrimSpace(rest)
	}
	for w := range strings.SplitSeq(want, "|") {
		if got == w {
			return true
		}
	}
	return false
}

func expected() map[string]string {
	want := map[string]string{}
	for _, part := range []map[string]string{
		atStart(), mounts(), procFiles(), namespaces(), privileges, calls, network, files, resources,
	} {
		maps.Copy(want, part)
	}
	return want
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// onHost keeps the names that dir has on this host.
func onHost(dir string, names ...string) []string {
	var out []string
	for _, name := range names {
		if exists(dir + name) {
			out = append(out, name)
		}
	}
	return out
}

// atStart is what a command finds: A02, A05, A09, A13, F04.
func atStart() map[string]string {
	root := append(onHost("/", "bin"), "dev", "etc", "home")
	root = append(root, onHost("/", "lib", "lib32", "lib64", "libx32", "opt")...)
	root = append(root, "proc", "root", "run")
	root = append(root, onHost("/", "sbin")...)
	root = append(root, "tmp", "usr", "var", "workspace")
	ids := fmt.Sprintf("0 %d 65536", uidBase)
	want := map[string]string{
		"A02 working directory": "/workspace",
		"A05 /dev":              "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero",
		"A09 /":                 strings.Join(root, " "),
		"A09 /sys":              "ENOENT",
		"A13 descriptors":       "0 /dev/null, 1 pipe, 2 pipe",
		"A13 environment": "AWS_CA_BUNDLE CARGO_HTTP_CAINFO CURL_CA_BUNDLE GIT_SSL_CAINFO HOME HOSTNAME LANG LOGNAME " +
			"NIX_SSL_CERT_FILE NODE_EXTRA_CA_CERTS PATH PIP_CERT REQUESTS_CA_BUNDLE SHELL SSL_CERT_FILE TERM TMPDIR USER npm_config_cafile",
		"A13 uid_map":           ids,
		"A13 gid_map":           ids,
		"A13 status Uid":        "1000 1000 1000 1000",
		"A13 status Gid":        "1000 1000 1000 1000",
		"A13 status Groups":     "",
		"A13 status NoNewPrivs": "1",
		"A13 status Seccomp":    "2",
		"F04 processes":         "", // not even init
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		want["A13 status "+set] = "0000000000000000"
	}
	return want
}

// What procfs shows that is none of a tenant's business, and what it may not
// change, on hosts that have it.
var (
	maskedFiles = []string{
		"kcore", "keys", "key-users", "kmsg", "kallsyms", "timer_list", "sched_debug", "latency_stats", "interrupts",
		"vmallocinfo", "slabinfo", "config.gz",
	}
	maskedFolders = []string{"acpi", "scsi", "asound", "driver"}
	readOnlyProc  = []string{"sys", "sysrq-trigger", "irq", "bus", "fs"}
)

// mounts is every mount of a jail: A09. All are nosuid; all but devices nodev;
// none is shared with the host.
func mounts() map[string]string {
	want := map[string]string{
		"/": "overlay rw nosuid nodev", "/usr": "* ro nosuid nodev", "/proc": "proc rw nosuid nodev noexec",
		"/dev": "tmpfs ro nosuid nodev", "/dev/pts": "devpts rw nosuid noexec", "/dev/shm": "tmpfs rw nosuid nodev",
		"/tmp": "tmpfs rw nosuid nodev", "/var/tmp": "tmpfs rw nosuid nodev",
		"/workspace": "* rw nosuid nodev", "/home/user": "* rw nosuid nodev",
	}
	if exists("/opt") {
		want["/opt"] = "* ro nosuid nodev"
	}
	for _, node := range []string{"full", "null", "random", "tty", "urandom", "zero"} {
		want["/dev/"+node] = "* rw nosuid noexec"
	}
	for _, name := range onHost("/proc/", append(maskedFiles, maskedFolders...)...) {
		want["/proc/"+name] = "tmpfs ro nosuid nodev"
	}
	for _, name := range onHost("/proc/", readOnlyProc...) {
		want["/proc/"+name] = "proc ro nosuid nodev noexec"
	}
	out := map[string]string{}
	for target, flags := range want {
		out["A09 mount "+target] = flags
	}
	return out
}

// procFiles is what can be read in /proc: F08. "true" is a leak that we know
// and accept: facts about the machine, none about other tenants' data.
func procFiles() map[string]string {
	want := map[string]string{}
	note := func(answer string, names ...string) {
		for _, name := range names {
			if exists("/proc/" + name) {
				want["F08 bytes of /proc/"+name] = answer
			} else {
				want["F08 bytes of /proc/"+name] = "ENOENT"
			}
		}
	}
	note("false", "kcore", "keys", "kmsg", "kallsyms", "timer_list", "sched_debug", "latency_stats", "acpi", "scsi", "asound",
		"interrupts", "vmallocinfo", "slabinfo", "config.gz")
	note("EACCES", "kpagecount", "kpageflags")
	note("true", "iomem", "ioports", "bus", "irq", "fs", "mounts", "cmdline", "version", "meminfo", "stat", "uptime", "loadavg",
		"diskstats")
	note("true|false", "modules")
	want["A15 sysrq-trigger"] = "ENOENT"
	if exists("/proc/sysrq-trigger") {
		want["A15 sysrq-trigger"] = "EACCES"
	}
	return want
}

// namespaces: A11.
func namespaces() map[string]string {
	want := map[string]string{}
	for _, name := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		want["A11 unshare "+name] = "EPERM"
		want["A11 clone "+name] = "EPERM"
		want["A11 clone "+name+", high bits"] = "EPERM"
	}
	want["A11 unshare time"] = "EPERM"
	return want
}

var privileges = map[string]string{
	"A03 write /proc/self/exe":      "ETXTBSY",
	"A03 open /proc/1/exe":          "ENOENT",
	"A03 open /proc/1/mem":          "ENOENT",
	"A07 mount over own proc":       "EPERM",
	"A10 mount tmpfs":               "EPERM",
	"A10 bind":                      "EPERM",
	"A10 remount writable":          "EPERM",
	"A10 umount":                    "EPERM",
	"A10 umount root":               "EPERM",
	"A10 pivot_root":                "EPERM",
	"A10 chroot":                    "EPERM",
	"A10 open_tree":                 "EPERM",
	"A10 move_mount":                "EPERM",
	"A10 fsopen":                    "EPERM",
	"A10 fspick":                    "EPERM",
	"A10 mount_setattr":             "EPERM",
	"A10 above the root":            "the root",
	"A12 open init's namespaces":    "ENOENT",
	"A12 open init's root":          "ENOENT",
	"A12 open init's cwd":           "ENOENT",
	"A12 read init's environment":   "ENOENT",
	"A12 setns":                     "EPERM",
	"A13 setuid 0":                  "EPERM",
	"A13 setresuid 0":               "EPERM",
	"A13 setgroups":                 "EPERM",
	"A13 keep and ambient":          "EPERM EPERM",
	"A13 setuid bit in workspace":   "ok", // without effect: the mount is nosuid, and no_new_privs is set
	"A13 dumpable":                  "ok", // the process's own affair
	"A13 lower oom score":           "EACCES",
	"A14 mount cgroup":              "EPERM",
	"A14 mount cgroup2":             "EPERM",
	"A15 writable under /proc/sys":  "",
	"A15 core_pattern":              "EACCES",
	"A15 own uid_map":               "EACCES",
	"A15 max_user_namespaces":       "0",
	"A16 mknod character device":    "EPERM",
	"A16 mknod block device":        "EPERM",
	"A16 /dev/null is null":         "20000 1:3",
	"A16 open /dev/kmsg":            "ENOENT",
	"A16 open /dev/mem":             "ENOENT",
	"A16 open /dev/fuse":            "ENOENT",
	"A16 open /dev/kvm":             "ENOENT",
	"A16 open /dev/net/tun":         "ENOENT",
	"A16 open /dev/loop0":           "ENOENT",
	"A16 open /dev/loop-control":    "ENOENT",
	"A16 open /dev/vda":             "ENOENT",
	"A16 open /dev/vsock":           "ENOENT",
	"A16 open /dev/console":         "ENOENT",
	"A16 open /dev/vhost-net":       "ENOENT",
	"A16 open /dev/userfaultfd":     "ENOENT",
	"A16 open /sys/kernel/security": "ENOENT",
	"A16 open /sys/fs/cgroup":       "ENOENT",
	"A16 open /sys/firmware":        "ENOENT",
	"A21 push input (TIOCSTI)":      "EPERM",
	"A21 push input, high bits":     "EPERM",
	"A21 console (TIOCLINUX)":       "EPERM",
	"A21 console (TIOCCONS)":        "EPERM",
	"A21 line discipline":           "EPERM",
	"A21 controlling terminal":      "ENXIO",
	"A22 kill init":                 "EPERM",
	"A22 stop init":                 "EPERM",
	"A22 signal init by thread":     "EPERM",
	"A22 signal init by descriptor": "EPERM",
	"A22 reboot":                    "SIGSYS",
	"A23 sethostname":               "EPERM",
	"A23 limits raise":              "EPERM",
}

var calls = map[string]string{
	"B02 x32 getpid":                    "SIGSYS",
	"B02 int 0x80":                      "SIGSYS",
	"B03 clone3":                        "ENOSYS",
	"B04 system call 999":               "ENOSYS",
	"B04 mseal":                         "ENOSYS",
	"B05 io_uring_setup":                "ENOSYS",
	"B05 io_uring_enter":                "ENOSYS",
	"B05 io_uring_register":             "ENOSYS",
	"B06 add_key":                       "ENOSYS",
	"B06 request_key":                   "ENOSYS",
	"B06 keyctl":                        "ENOSYS",
	"B07 ptrace self":                   "EPERM",
	"B07 ptrace sibling":                "EPERM",
	"B07 ptrace init":                   "EPERM",
	"B07 process_vm_readv":              "EPERM",
	"B07 process_vm_writev":             "EPERM",
	"B07 pidfd_getfd":                   "EPERM",
	"B07 kcmp":                          "EPERM",
	"B07 process_madvise":               "EPERM",
	"B08 bpf":                           "EPERM",
	"B08 perf_event_open":               "EPERM",
	"B08 userfaultfd":                   "EPERM",
	"B08 fanotify_init":                 "EPERM",
	"B08 name_to_handle_at":             "EPERM",
	"B08 open_by_handle_at":             "EPERM",
	"B08 quotactl":                      "EPERM",
	"B08 kexec_load":                    "SIGSYS",
	"B08 kexec_file_load":               "SIGSYS",
	"B08 init_module":                   "SIGSYS",
	"B08 finit_module":                  "SIGSYS",
	"B08 delete_module":                 "SIGSYS",
	"B08 acct":                          "EPERM",
	"B08 swapon":                        "EPERM",
	"B08 swapoff":                       "EPERM",
	"B08 iopl":                          "EPERM",
	"B08 ioperm":                        "EPERM",
	"B08 settimeofday":                  "EPERM",
	"B08 clock_settime":                 "EPERM",
	"B08 adjtimex":                      "EPERM",
	"B08 syslog":                        "EPERM",
	"B08 memfd_secret":                  "ENOSYS",
	"B08 lookup_dcookie":                "EPERM",
	"B08 statmount":                     "ENOSYS",
	"B08 listmount":                     "ENOSYS",
	"B10 personality ask":               "0x0 0",
	"B10 personality high bits":         "EPERM",
	"B10 personality no randomisation":  "EPERM",
	"B10 personality page zero":         "EPERM",
	"B10 personality read implies exec": "EPERM",
	"B11 seccomp listener":              "EPERM",
	"B11 seccomp listener, tsync":       "EPERM",
	"B11 seccomp speculation":           "EPERM",
	"B11 seccomp stacked":               "stacked, then bpf EPERM",
	"B11 PR_SET_SECCOMP":                "EPERM",
	"B11 PR_SET_MM":                     "EPERM",
	"B11 PR_SET_PTRACER":                "EPERM",
	"B11 PR_SET_SPECULATION_CTRL":       "EPERM",
	"B13 modify_ldt":                    "EPERM",
	"B13 vhangup":                       "EPERM",
	"B13 mbind":                         "EPERM",
	"B13 set_mempolicy":                 "EPERM",
	"B13 move_pages":                    "EPERM",
	"B13 realtime":                      "EPERM",
	"B13 sched_setattr":                 "EPERM",
	"B13 nice":                          "EACCES", // the rlimit's doing
	"B13 ioprio realtime":               "EPERM",
	"B13 uselib":                        "EPERM",
	"B13 sysctl":                        "EPERM",
}

// network is a jail without one: nothing but lo.
var network = map[string]string{
	"B09 packet, high bits": "EAFNOSUPPORT",
	"B09 raw, high bits":    "EAFNOSUPPORT",
	"B09 mptcp, high bits":  "EAFNOSUPPORT",
	"B09 socketpair inet":   "EAFNOSUPPORT",
	"B09 socketpair tipc":   "EAFNOSUPPORT",
	"B12 iptables replace":  "EPERM|ENOPROTOOPT",
	"B12 ip6tables replace": "EPERM|ENOPROTOOPT",
	"B12 arptables replace": "EPERM|ENOPROTOOPT",
	"B12 tcp ulp":           "EPERM",
	"B12 attach bpf":        "EPERM",
	"B12 mark":              "EPERM",
	"B12 transparent":       "EPERM",
	"B12 debug":             "EACCES",
	"B12 force buffer":      "EPERM",
	"B12 add an address":    "EPERM",
	"B12 link down":         "EPERM",
	"B12 netlink add route": "EPERM",

	"C05 tcp to the world": "ENETUNREACH", "C05 udp to the world": "ENETUNREACH",
	"C05 tcp to the world 6": "ENETUNREACH", "C05 udp to the world 6": "ENETUNREACH",
	"C05 tcp to metadata": "ENETUNREACH", "C05 udp to metadata": "ENETUNREACH",
	"C05 tcp to a neighbour": "ENETUNREACH", "C05 udp to a neighbour": "ENETUNREACH",
	"C05 tcp to link local": "ENETUNREACH", "C05 udp to link local": "ENETUNREACH",
	"C05 tcp to multicast 6": "ENETUNREACH", "C05 udp to multicast 6": "EINVAL|ENETUNREACH",
}

var files = map[string]string{
	"C01 create in workspace":    "ok",
	"C01 execute in workspace":   "ran, code 7",
	"C01 execute in /tmp":        "ran, code 7",
	"C01 create in /":            "EACCES",
	"C01 create in /etc":         "EACCES",
	"C01 create in /usr":         "EROFS",
	"C01 create in /usr/local":   "EROFS",
	"C01 create in /bin":         "EROFS",
	"C01 create in /root":        "EACCES",
	"C01 create in /var":         "EACCES",
	"C01 create in /run":         "EACCES",
	"C01 create in /home":        "EACCES",
	"C01 create in /dev":         "EROFS",
	"C01 create in /proc":        "ENOENT",
	"C01 create in /proc/sys":    "ENOENT",
	"C01 truncate /etc/passwd":   "EACCES",
	"C01 append /etc/hosts":      "EACCES",
	"C01 write /usr/bin/env":     "EACCES",
	"C01 write /dev/null":        "ok",
	"C01 execute a device":       "EACCES",
	"C01 rename to /tmp":         "EXDEV",
	"C01 rename in workspace":    "ok",
	"C01 link a host's program":  "EXDEV",
	"C01 unlink a program":       "EROFS",
	"C01 replace resolv.conf":    "EACCES",
	"C02 chmod a program":        "EROFS",
	"C02 chown a program":        "EROFS",
	"C02 utimes of a program":    "EROFS",
	"C02 setxattr on a program":  "EROFS",
	"C02 chmod /etc/passwd":      "EPERM",
	"C02 chmod /dev/null":        "EPERM",
	"C02 chown to root":          "EPERM",
	"C02 file capabilities":      "EPERM",
	"C02 trusted attribute":      "EPERM",
	"C04 sockets in the tree":    "",
	"C04 FIFOs in the tree":      "",
	"C04 devices outside /dev":   "",
	"C06 mkfifo in workspace":    "ok",
	"C06 ioctl on a device":      "EPERM",
	"C07 nest Landlock":          "nested until E2BIG",
	"C08 POSIX message queue":    "EACCES", // its file system has no place in the jail's tree
	"C09 folders to write in":    "/dev/shm /home/user /tmp /var/tmp /workspace",
	"C10 symlink to init's root": "ENOENT",
	"C10 read /etc/shadow":       "ENOENT",
	"C10 host's files":           "",
}

var resources = map[string]string{
	"D01 fork":               "EAGAIN",
	"D02 rlimit core":        "0",
	"D02 rlimit realtime":    "0",
	"D02 rlimit nice":        "0",
	"D02 rlimit files":       fmt.Sprint(openFiles),
	"D03 large pipe":         "EPERM",
	"D03 lock memory":        "ENOMEM",
	"D04 inodes of /tmp":     "ENOSPC",
	"D04 inodes of /dev/shm": "ENOSPC",
	"D05 fill /tmp":          "ENOSPC",
	"D05 fill /dev/shm":      "ENOSPC",
	"D06 descriptors":        fmt.Sprintf("EMFILE at %d", openFiles),
	"D08 zombies":            "all reaped",
}

// expectedSockets are those that are answered otherwise than with EAFNOSUPPORT:
// local sockets of any kind, TCP and UDP, the unprivileged ping that no group
// may use, and netlink's question about interfaces. Not raw, packet, MPTCP,
// SCTP, nor any other family.
func expectedSockets() map[string]string {
	want := map[string]string{}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_RDM, unix.SOCK_SEQPACKET, unix.SOCK_DCCP, unix.SOCK_PACKET} {
		for _, proto := range []int{0, 1, 2, 6, 15, 16, 17, 33, 58, 132, 136, 255, 262} {
			key := fmt.Sprintf("%d %d %d", unix.AF_UNIX, kind, proto)
			switch {
			case proto != 0 && proto != unix.AF_UNIX:
				want[key] = "EPROTONOSUPPORT"
			case kind == unix.SOCK_RDM || kind == unix.SOCK_DCCP || kind == unix.SOCK_PACKET:
				want[key] = "ESOCKTNOSUPPORT"
			default:
				want[key] = "ok"
			}
		}
		key := fmt.Sprintf("%d %d %d", unix.AF_NETLINK, kind, unix.NETLINK_ROUTE)
		want[key] = "ESOCKTNOSUPPORT"
		if kind == unix.SOCK_RAW || kind == unix.SOCK_DGRAM {
			want[key] = "ok"
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, ok := range [][2]int{{unix.SOCK_STREAM, 0}, {unix.SOCK_STREAM, 6}, {unix.SOCK_DGRAM, 0}, {unix.SOCK_DGRAM, 17}} {
			want[fmt.Sprint(family, " ", ok[0], " ", ok[1])] = "ok"
		}
	}
	want[fmt.Sprint(unix.AF_INET, " ", unix.SOCK_DGRAM, " ", unix.IPPROTO_ICMP)] = "EACCES"
	want[fmt.Sprint(unix.AF_INET, " ", unix.SOCK_DGRAM, " ", unix.IPPROTO_ICMPV6)] = "EPROTONOSUPPORT"
	want[fmt.Sprint(unix.AF_INET6, " ", unix.SOCK_DGRAM, " ", unix.IPPROTO_ICMP)] = "EPROTONOSUPPORT"
	want[fmt.Sprint(unix.AF_INET6, " ", unix.SOCK_DGRAM, " ", unix.IPPROTO_ICMPV6)] = "EACCES"
	return want
}
