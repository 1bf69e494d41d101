package confine

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
)

// goRuntime is what a Go program with cgo needs to live: memory, threads,
// signals to itself, time, and the network poller. Nothing in it names a file,
// another process or a namespace.
var goRuntime = []string{
	// Memory. mmap and mprotect are restricted below. brk and mremap are the C
	// library's malloc; madvise and munmap give memory back.
	"munmap", "madvise", "brk", "mremap",
	// Threads: end, sleep, wake, identify. clone is restricted below; clone3 is
	// not listed, so the C library gets ENOSYS and falls back to clone, whose
	// flags a filter can see. set_robust_list and rseq are called by each new
	// thread of the C library.
	"exit", "exit_group", "futex", "sched_yield", "gettid", "getpid", "set_robust_list", "rseq",
	// Signals: handlers, masks, stacks, return. Sending is restricted below.
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall",
	// Time and randomness, where the vDSO does not answer.
	"clock_gettime", "nanosleep", "clock_nanosleep", "getrandom",
	// The poller. eventfd2 and epoll_create1 are called at its first use.
	"epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2",
	// Descriptors that are there already.
	"read", "write", "readv", "writev", "close", "fstat", "lseek", "pread64", "pwrite64",
	// Sockets that are there already: ipc frames, with descriptors.
	"recvmsg", "sendmsg", "recvfrom", "sendto", "shutdown", "getsockopt", "getsockname", "getpeername",
}

// rules for calls that a Go program needs in some forms only.
func runtimeRules() []seccomp.Rule {
	// A filter is made in the process that it is for, so "only to itself" can be
	// said with its own number.
	self := uint32(os.Getpid())
	const (
		// Flags of a thread: the C library's and Go's differ in the others.
		thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD
		// Flags that a thread has no use for: namespaces, being traced, being
		// stopped, a cgroup. CLONE_NEWTIME shares a bit with the exit signal,
		// which a thread does not have.
		never = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME |
			unix.CLONE_PTRACE | unix.CLONE_VFORK | unix.CLONE_PARENT | unix.CLONE_IO
		// PR_SET_VMA names a mapping in /proc/self/maps; Go does that.
		prSetVMA, prSetVMAAnonName = 0x53564d41, 0
	)
	rule := func(name string, args ...seccomp.Arg) seccomp.Rule { return seccomp.Rule{Name: name, Args: args} }
	return []seccomp.Rule{
		rule("clone", seccomp.Masked(0, thread|never, thread)),
		// Compiled Wasm is written first and made executable afterwards; memory
		// that is both at once is what an exploit wants. Executable mappings are
		// needed by isolates alone: see WorkerFilter.
		rule("mmap", seccomp.Masked(2, unix.PROT_EXEC, 0)),
		rule("mprotect", seccomp.Masked(2, unix.PROT_EXEC, 0)),
		// Pre-emption and raise(3): threads of this process.
		rule("tgkill", seccomp.Is(0, self)),
		rule("kill", seccomp.Is(0, self)),
		rule("prctl", seccomp.Is(0, prSetVMA), seccomp.Is(1, prSetVMAAnonName)),
		// GOMAXPROCS follows the affinity mask; pid 0 is the caller.
		rule("sched_getaffinity", seccomp.Is(0, 0)),
		// Modes and duplicates. Not F_SETOWN, F_SETSIG: they make the kernel send
		// signals. Not locks.
		rule("fcntl", seccomp.Is(1, unix.F_GETFL)),
		rule("fcntl", seccomp.Is(1, unix.F_SETFL), seccomp.Masked(2, unix.O_ASYNC, 0)),
		rule("fcntl", seccomp.Is(1, unix.F_GETFD)),
		rule("fcntl", seccomp.Is(1, unix.F_SETFD)),
		rule("fcntl", seccomp.Is(1, unix.F_DUPFD_CLOEXEC)),
		rule("fcntl", seccomp.Is(1, unix.F_GET_SEALS)),
	}
}

// refused are calls whose refusal a person may meet in an error message: there
// "operation not permitted" says more than "function not implemented". All
// other calls that are not listed are refused as well, with ENOSYS.
var refused = []string{
	"open", "openat", "openat2", "creat", "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2",
	"readlink", "readlinkat", "getdents64", "chdir", "mkdir", "mkdirat", "unlink", "unlinkat", "rename", "renameat",
	"renameat2", "chmod", "fchmodat", "chown", "fchownat", "truncate",
	"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "setsockopt",
	"execve", "execveat", "fork", "vfork", "ptrace", "process_vm_readv", "process_vm_writev", "tkill", "pidfd_open",
	"pidfd_send_signal", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "bpf", "perf_event_open",
	"userfaultfd", "ioctl", "setuid", "setgid", "setresuid", "setresgid", "setgroups", "capset", "personality", "memfd_create",
}

// lethal are calls that only an exploit makes.
var lethal = []string{"reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "swapon", "swapoff", "acct"}

// filter assembles a role's list; what the role allows is no longer refused.
func filter(allow []string, rules []seccomp.Rule) *seccomp.Filter {
	f := &seccomp.Filter{
		Allow:   append(slices.Clone(goRuntime), allow...),
		AllowIf: append(runtimeRules(), rules...),
		Errno:   map[string]unix.Errno{},
		Kill:    slices.Clone(lethal),
	}
	for _, name := range refused {
		named := func(r seccomp.Rule) bool { return r.Name == name }
		if !slices.Contains(f.Allow, name) && !slices.ContainsFunc(f.AllowIf, named) {
			f.Errno[name] = unix.EPERM
		}
	}
	return f
}

// WorkerFilter is for isolate workers: they compile and run hostile Wasm, and
// talk to the daemon over one socket that they inherited. No path, no new
// socket, no process, no signal to anyone else. Call it in the worker itself.
func WorkerFilter() *seccomp.Filter {
	const wx = unix.PROT_WRITE | unix.PROT_EXEC
	return filter(
		[]string{
			// An engine's warmed memory is copied to a sealed memory file and
			// mapped from there for each call.
			"memfd_create", "ftruncate",
		},
		[]seccomp.Rule{
			// wazero writes machine code to a private mapping and then makes it
			// executable; never both at once, and never a file's pages.
			{Name: "mprotect", Args: []seccomp.Arg{seccomp.Masked(2, wx, unix.PROT_EXEC)}},
			{Name: "mmap", Args: []seccomp.Arg{seccomp.Masked(2, wx, unix.PROT_EXEC), seccomp.Masked(3, unix.MAP_ANONYMOUS, unix.MAP_ANONYMOUS)}},
			{Name: "fcntl", Args: []seccomp.Arg{seccomp.Is(1, unix.F_ADD_SEALS)}},
			// A thread that computes for long asks to be let out less often. Pid 0
			// is the thread itself; what needs a right, such as a priority, the
			// kernel refuses.
			{Name: "sched_setattr", Args: []seccomp.Arg{seccomp.Is(0, 0)}},
		},
	)
}

// ProxyFilter is for the egress proxy: it parses what jails and the world send,
// resolves names, and connects. No executable memory, no process, no listening
// socket of its own making, no file that it could change. Call it in the proxy
// itself.
func ProxyFilter() *seccomp.Filter {
	rules := []seccomp.Rule{
		// The trusted roots and the resolver's settings, where Landlock lets it:
		// to read, never to create. newfstatat and the like are below.
		{Name: "openat", Args: []seccomp.Arg{seccomp.Masked(2,
			unix.O_ACCMODE|unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND|unix.O_PATH|unix.O_TMPFILE&^unix.O_DIRECTORY, unix.O_RDONLY)}},
	}
	// Sockets: TCP and UDP over IP. Not Unix (its peers are inherited), not raw,
	// not Multipath TCP, which Landlock's TCP rules do not see.
	for _, family := range []uint32{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range [][2]uint32{
			{unix.SOCK_STREAM, 0}, {unix.SOCK_STREAM, unix.IPPROTO_TCP},
			{unix.SOCK_DGRAM, 0}, {unix.SOCK_DGRAM, unix.IPPROTO_UDP},
		} {
			rules = append(rules, seccomp.Rule{Name: "socket", Args: []seccomp.Arg{
				seccomp.Is(0, family), seccomp.Masked(1, 0xf, kind[0]), seccomp.Is(2, kind[1]),
			}})
		}
	}
	// Options that Go sets, and miekg/dns for the address a question came to.
	for _, option := range [][2]uint32{
		{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.SOL_SOCKET, unix.SO_BROADCAST}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
		{unix.SOL_SOCKET, unix.SO_LINGER}, {unix.SOL_SOCKET, unix.SO_RCVBUF}, {unix.SOL_SOCKET, unix.SO_SNDBUF},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
		{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}, {unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO}, {unix.IPPROTO_IP, unix.IP_PKTINFO},
	} {
		rules = append(rules, seccomp.Rule{Name: "setsockopt", Args: []seccomp.Arg{seccomp.Is(1, option[0]), seccomp.Is(2, option[1])}})
	}
	return filter(
		[]string{
			// Out, and in on listeners that the daemon made. Not bind and listen.
			"connect", "accept4",
			// Credentials' memory is kept from being swapped.
			"mlock",
			// Files that openat gave: attributes, directories, links on the way.
			"newfstatat", "statx", "getdents64", "readlinkat",
		},
		rules,
	)
}
